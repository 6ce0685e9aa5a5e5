(function () {
  "use strict";
  var contents = document.getElementById("contents");
  if (contents && !window.matchMedia("(min-width: 80rem)").matches) contents.open = false;

  var button = document.getElementById("open-code"), open = false;
  if (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      open = !open;
      document.querySelectorAll("details.code").forEach(function (one) { one.open = open; });
      button.textContent = open ? "Close all code" : "Open all code";
    });
  }

  function value(row, column) {
    var cell = row.cells[column], text = cell ? cell.dataset.value || cell.textContent.trim() : "";
    var number = parseFloat(text.replace(/[,+]/g, "").replace("−", "-"));
    return isNaN(number) ? text.toLowerCase() : number;
  }
  function sortBy(table, column, head) {
    var down = head.getAttribute("aria-sort") === "ascending", body = table.tBodies[0];
    table.querySelectorAll("th").forEach(function (one) { one.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    Array.from(body.rows).sort(function (one, two) {
      var a = value(one, column), b = value(two, column);
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    }).forEach(function (row) { body.append(row); });
  }
  document.querySelectorAll(".scroll").forEach(function (box) {
    var table = box.querySelector("table");
    if (!table || !table.tHead || !table.tBodies.length || table.tBodies[0].rows.length < 2) return;
    Array.from(table.tHead.rows[0].cells).forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.title = "Sort by this column";
      button.append.apply(button, Array.from(head.childNodes));
      button.addEventListener("click", function () { sortBy(table, column, head); });
      head.append(button);
    });
    if (table.tBodies[0].rows.length < 8) return;
    var label = document.createElement("label"), input = document.createElement("input");
    label.className = "filter";
    input.type = "search";
    label.append("Rows with ", input);
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(" ").filter(Boolean);
      Array.from(table.tBodies[0].rows).forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
      });
    });
    box.before(label);
  });
  function mark() {
    document.querySelectorAll(".scroll").forEach(function (box) {
      var more = box.scrollWidth - box.clientWidth > 4, hint = box.previousElementSibling;
      box.classList.toggle("more", more && box.scrollLeft + box.clientWidth < box.scrollWidth - 4);
      if (hint && hint.classList.contains("hint")) hint.hidden = !more;
      else if (more) {
        hint = document.createElement("p");
        hint.className = "hint";
        hint.textContent = "More columns to the right: the table scrolls →";
        box.before(hint);
      }
    });
  }
  mark();
  window.addEventListener("resize", mark);
  document.querySelectorAll("details").forEach(function (one) { one.addEventListener("toggle", mark); });
  document.querySelectorAll(".scroll").forEach(function (box) { box.addEventListener("scroll", mark); });

  document.querySelectorAll("button.enlarge").forEach(function (one) {
    one.addEventListener("click", function () {
      var large = document.createElement("dialog"), picture = one.querySelector("img").cloneNode();
      large.className = "large";
      large.setAttribute("aria-label", one.title);
      picture.tabIndex = 0;
      large.append(picture);
      document.body.append(large);
      large.addEventListener("click", function () { large.close(); });
      large.addEventListener("close", function () { large.remove(); one.focus(); });
      large.showModal();
    });
  });
})();
