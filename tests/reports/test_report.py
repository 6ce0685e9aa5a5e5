"""Reports: one file, everything in it, readable by anyone."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import re

import pytest
from conftest import TEMPLATE
from PIL import Image

from quarl_lib.reports import markup, report
from quarl_lib.suite import states

ALT = "Return over bits for two agents; both fall below four bits"


class Page(html.parser.HTMLParser):
    """Collect what a page loads, its images, headings, ids and links."""

    void = frozenset({"meta", "link", "img", "br", "hr", "input", "path", "use"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.tables = self.boxed_tables = self.data_rows = 0
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in ("img", "script", "iframe", "link", "source", "video"):
            self.loads += [values[name] for name in ("src", "href", "srcset") if values.get(name)]
        if tag == "img":
            self.images.append(values)
        if tag == "table":
            self.tables += 1
            self.boxed_tables += any(one.get("class") == "scroll" for _, one in self.open)
        if tag == "tr":
            self.data_rows += any(name == "tbody" for name, _ in self.open)
        if values.get("id"):
            self.ids.append(values["id"])
        if tag == "a" and values.get("href"):
            self.targets.append(values["href"])
        if tag not in self.void:
            self.open.append((tag, values))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass


def picture() -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (60, 40), "white").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def code_cell(source: str, *outputs: dict, count: int | None = 1, tags: tuple[str, ...] = ()) -> dict:
    return {"cell_type": "code", "source": source, "outputs": list(outputs), "execution_count": count,
            "metadata": {"tags": list(tags)}}  # fmt: skip


def shown(mime: str, data: str, /, **facts: object) -> dict:
    return {"output_type": "display_data", "data": {mime: data}, "metadata": {mime: facts} if facts else {}}


def stream(name: str, text: str) -> dict:
    return {"output_type": "stream", "name": name, "text": text}


ROWS = "".join(f"<tr><td>agent {n}</td><td>{n}.5</td></tr>" for n in range(40))
TABLE = (
    "<style>#T {}</style><table class='d'><thead><tr><th>agent</th><th>mean</th></tr></thead>"
    f"<tbody>{ROWS}</tbody></table><script src='https://cdn.example/x.js'></script>"
)
STEP_2 = stream("stdout", "\rstep 2/2\n")
CELLS = [
    {"cell_type": "markdown", "metadata": {}, "source": "# PTQ & bits\n\nHow few bits do?\n\nTable 2."},
    {"cell_type": "markdown", "metadata": {}, "source": "## Method\n\nWith $\\alpha_t < 1$:\n\n$$q = \\frac{x}{s}$$"},
    {"cell_type": "markdown", "metadata": {}, "source": "## Method\n\nagain"},
    code_cell("bits: int = 4  # a", tags=("parameters",)),
    code_cell("x = '<b>'", stream("stderr", "W: noise\n"), stream("stdout", "\rstep 1/2"), STEP_2),
    code_cell("table", shown("text/html", TABLE)),
    code_cell("figure", shown("image/png", picture(), alt=ALT, name="return_over_bits", data="summary.csv")),
    code_cell("say", shown("text/markdown", "It **falls** at 2 bits.")),
    code_cell("print(1)", stream("stdout", "a plain line\n")),
]  # fmt: skip


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "outputs" / "smoke" / "ptq_study" / "smoke-12345678"
    folder.mkdir(parents=True)
    (folder / "notebook.ipynb").write_text(json.dumps({"cells": CELLS}))
    (folder / "summary.csv").write_text("agent,mean\n")
    states.change(
        folder, "ok", run_id="smoke-12345678", suite="smoke", preset="smoke", duration_s=75.0, started=1e9,
        parameters={"bits": 4, "seed": 1}, changed=["bits"], key_figure="4 bits do", commit="abc",
        cpu="A CPU", cpu_features=["avx2"], cores=2, seeds={"seed": 1},
    )  # fmt: skip
    return folder


@pytest.fixture
def text(run_folder):
    return report.build(run_folder).read_text()


def test_nothing_comes_from_elsewhere_and_every_image_says_what_it_shows(text):
    page = Page(text)
    assert [source for source in page.loads if not source.startswith("data:")] == []
    assert "cdn.example" not in text
    assert [image["alt"] for image in page.images] == [ALT, ALT], "in the head and in its place"
    assert page.images[0]["width"] == "60"


def test_figure_links_its_data_and_its_file(text):
    assert {"summary.csv", "figures/return_over_bits.png"} <= set(Page(text).targets)
    assert not [target for target in Page(text).targets if target.startswith(("/", "file:"))], "links are relative"


def test_long_table_is_cut_after_thirty_rows_with_a_link(text):
    assert "agent 29<" in text
    assert "agent 30<" not in text
    assert 'First 30 of 40 rows: <a href="summary.csv">' in text
    page = Page(text)
    assert page.tables == page.boxed_tables == 2, "each table scrolls in a box of its own"


def test_code_is_folded_and_coloured_and_noise_is_collapsed(text):
    assert text.count('<details class="code">') == 6
    assert "<summary>Parameters</summary>" in text
    assert re.search(r'<span class="s1">[^ ]*&lt;b&gt;', text)
    assert "Messages (1 line)</summary>" in text
    progress = re.search(r"Progress \(1 line\)</summary><pre[^>]*>(.*?)</pre>", text)[1]  # type: ignore[index]
    assert progress == "step 2/2"
    assert '<pre tabindex="0">a plain line</pre>' in text


def test_contents_link_to_headings_with_ids_that_do_not_repeat(text):
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert {"#method", "#method-2"} <= set(page.targets)
    assert {target[1:] for target in page.targets if target.startswith("#")} <= set(page.ids)


def test_head_says_state_duration_parameters_and_machine(text):
    head = text.partition("</header>")[0]
    for words in (
        "<h1>PTQ &amp; bits</h1>",
        "How few bits do?",
        "4 bits do",
        "1 min 15 s",
        "avx2",
        "<strong>4</strong>",
    ):
        assert words in head
    assert head.count("How few bits do?") == 1


def test_equations_are_mathml_with_their_tex_beside_it(text):
    assert re.search(r'<math [^>]*alttext="\\alpha_t &lt; 1"[^>]*><mrow><msub><mi>α</mi>', text)
    block = r'<div class="math-block" tabindex="0"><math [^>]*display="block".*<mfrac><mrow><mi>x</mi></mrow>'
    assert re.search(block, text)
    assert '<code class="tex">' not in text
    assert "mathjax" not in text.lower()


@pytest.mark.parametrize("tex", [r"\begin{array}{c} a < b", r"\frac{a", r"\unheard{x}"])
def test_equation_that_was_not_understood_stays_readable(tex):
    assert markup.equation(tex) == f'<code class="tex">{tex.replace("<", "&lt;")}</code>'


def test_lines_of_an_equation_stand_under_each_other():
    rows = re.findall("<mtr>", markup.equation(r"a &= b \\ c &= d"))
    assert len(rows) == 2


def test_what_could_run_or_load_from_elsewhere_is_left_out():
    source = (
        "A <b onclick='f()'>bold</b> [link](javascript:f()), ![far](https://example.org/x.png) "
        "![near](figures/y.png)\n\n"
        "<iframe src='https://example.org'></iframe><p style='position: fixed'>styled</p><script>f()</script>"
    )
    page = markup.Markdown().render(source)
    assert "<b>bold</b>" in page
    assert '<img alt="near" src="figures/y.png"/>' in page
    for word in ("onclick", "javascript", "example.org", "iframe", "script", "position"):
        assert word not in page, page


def test_numbers_stand_right_only_where_a_whole_column_is_numbers():
    table = (
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2.5e-3</td></tr><tr><td>x</td><td>–</td></tr></table>"
    )
    boxed = markup.in_boxes(table)
    assert '<th class="num" scope="col">b</th>' in boxed
    assert '<td>1</td><td class="num">0.0025</td>' in boxed


def test_report_of_a_failed_run_says_where_and_why(run_folder):
    cells = [*CELLS[:3], code_cell("1 / 0\n", {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "by 0",
             "traceback": ["\x1b[31mZeroDivisionError\x1b[0m: by 0"]}), code_cell("later()", count=None)]  # fmt: skip
    marker = {"cell_type": "markdown", "metadata": {"tags": ["papermill-error-cell-tag"]}, "source": "An Exception"}
    (run_folder / "notebook.ipynb").write_text(json.dumps({"cells": [marker, *cells]}))
    states.change(run_folder, "failed", reason="ZeroDivisionError: by 0", cell=3)
    text = report.build(run_folder).read_text()
    assert "This run failed in cell 4: 1 / 0" in text
    assert '<a href="#cell-3">' in text
    assert re.search('<details class="code" open(="")?>', text)
    assert "\x1b" not in text
    assert text.count("This cell was not run.") == 1
    assert states.read(run_folder)["state"] == "failed", "writing the report does not change the state"


def test_folder_without_a_notebook_is_refused(tmp_path):
    with pytest.raises(ValueError, match="give the folder of a run"):
        report.build(tmp_path)


def test_template_is_kept_stripped():
    cells = json.loads((TEMPLATE / "notebooks" / "01_dice.ipynb").read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


def test_words_of_the_field_are_explained_once_and_in_prose_only(run_folder):
    said = {"cell_type": "markdown", "metadata": {}, "source": "The learner feeds `fp32` actors; each learner in fp32."}
    (run_folder / "notebook.ipynb").write_text(json.dumps({"cells": [CELLS[0], said]}))
    body = report.build(run_folder).read_text().partition("<main")[2]
    titles = re.findall(r'<abbr title="([^"]*)">([^<]*)</abbr>', body)
    assert [word for _, word in titles] == ["learner", "actors", "fp32"]
    assert titles[0][0] == "The process that trains the policy on the experience that actors collect."
    assert "<code>fp32</code>" in body


def test_head_shows_the_figure_that_was_named_and_folds_parameters(tmp_path):
    def drawn(name: str) -> dict:
        facts = {"alt": f"The figure {name} here", "caption": f"The figure {name} here. n: 3 seeds.", "name": name}
        return {**shown("image/png", picture()), "metadata": {"image/png": facts}}

    table = {**shown("text/html", "<table><tr><th>parameter</th></tr><tr><td>bits</td></tr></table>"),
             "metadata": {"text/html": {"folded": "parameters"}}}  # fmt: skip
    cells = [code_cell("run.table()", table), code_cell("first", drawn("one")), code_cell("second", drawn("two")),
             {"cell_type": "markdown", "metadata": {"tags": ["lab-only"]}, "source": "## Try this"}]  # fmt: skip
    (tmp_path / "notebook.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "finished.json").write_text(json.dumps({"figure": "two"}))
    page = report.build(tmp_path).read_text()
    head = page[page.index("<header>") : page.index("</header>")]
    assert "The figure two here. n: 3 " in head
    assert "The figure one" not in head
    assert "<details><summary>Parameters</summary>" in page[page.index("</header>") :]
    assert "Try this" not in page, "for JupyterLab"
    (tmp_path / "finished.json").write_text("{}")
    assert "The figure one" in report.build(tmp_path).read_text().partition("</header>")[0]
