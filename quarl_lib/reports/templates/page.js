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
