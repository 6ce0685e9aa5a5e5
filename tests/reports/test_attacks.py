"""Nothing executed, nothing lost: each way that script came into a report, and each output that vanished from one."""

from __future__ import annotations

import base64
import dataclasses
import json

import pytest
from browser import Browser
from test_report import code_cell, picture, shown, stream

from quarl_lib import results
from quarl_lib.reports import index, outputs, report
from quarl_lib.suite import states

HIT = "window.hit = 1"
SVG_TEXT = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20" width="40" height="20" onload="{HIT}">
<script>{HIT}</script><a href="javascript:{HIT}"><rect id="drawn" width="40" height="20" onclick="{HIT}"/></a>
<foreignObject><body xmlns="http://www.w3.org/1999/xhtml" onload="{HIT}"/></foreignObject>
<image href="https://example.org/x.png"/></svg>"""
HTML = [
    f"<script>{HIT}</script>",
    f"<SCRIPT>{HIT}</SCRIPT>",
    f"<ScRiPt src='data:text/javascript,{HIT}'></sCrIpT>",
    f"<img src=x onerror='{HIT}'>",
    f"<body onload='{HIT}'><svg onload='{HIT}'><svg><script>{HIT}</script></svg>",
    f"<a href='javascript:{HIT}' class='click'>a</a><a href='JaVaScRiPt:{HIT}' class='click'>b</a>",
    f"<a href='data:text/html,<script>{HIT}</script>' class='click'>c</a>",
    f"<iframe srcdoc='<script>parent.hit = 1</script>'></iframe><object data='javascript:{HIT}'></object>",
    f"<math><mtext><table><mglyph><style><img src=x onerror='{HIT}'></style></mglyph></table></mtext></math>",
    f"<details open ontoggle='{HIT}'><summary>d</summary></details><input autofocus onfocus='{HIT}'>",
    "<base href='https://example.org/'><meta http-equiv='refresh' content='0;url=https://example.org'>",
    "<form action='https://example.org'><button>send</button></form><style>body { display: none }</style>",
]
BREAKOUT = picture() + f'" onload="{HIT}"><script>{HIT}</script>'
NAMES = {"alt": f'"><img src=x onerror="{HIT}">', "name": f'x" onclick="{HIT}', "data": f"javascript:{HIT}//"}


def widget(model: str) -> dict:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/plain": "Output()", outputs.WIDGET: {
        "model_id": model}}}  # fmt: skip


def state(name: str, **values: object) -> dict:
    return {"model_name": name, "state": values}


WIDGETS = {
    "out": state("OutputModel", outputs=[shown("image/png", picture(), alt="A figure inside an Output"),
                                         shown("text/html", HTML[3]), stream("stdout", "said inside\n")]),
    "box": state("VBoxModel", children=["IPY_MODEL_out", "IPY_MODEL_slider", "IPY_MODEL_box"]),
    "slider": state("FloatSliderModel", value=0.5, description="<b>rate</b>"),
    "html": state("HTMLModel", value=HTML[1] + "words of a widget"),
}  # fmt: skip


def build(tmp_path, *cells: dict, state: str = "ok", **facts: object) -> str:
    folder = tmp_path / "outputs" / "smoke" / "dice" / "smoke-12345678"
    folder.mkdir(parents=True, exist_ok=True)
    saved = {"application/vnd.jupyter.widget-state+json": {"state": WIDGETS}}
    (folder / "notebook.ipynb").write_text(json.dumps({"cells": cells, "metadata": {"widgets": saved}}))
    record = {"study": "dice", "run_id": folder.name, "suite": "smoke", "preset": "smoke", "started": 1.0}
    states.change(folder, state, **{**record, **facts})
    text = report.build(folder).read_text()
    index.build(folder.parents[1])
    return text


def hostile(tmp_path):
    """Write a report, and its index, in which every place that a run fills holds an attack."""
    return build(
        tmp_path,
        {"cell_type": "markdown", "metadata": {}, "source": f"# {HTML[3]}\n\n" + "\n\n".join(HTML)},
        *(code_cell("x", shown("text/html", one)) for one in HTML),
        *(code_cell("x", shown("text/markdown", f"{one} [l](javascript:{HIT})")) for one in HTML),
        code_cell(HTML[0], stream("stdout", HTML[0]), shown("text/plain", HTML[3])),
        code_cell("p", shown("image/png", BREAKOUT, **NAMES), shown("image/svg+xml", SVG_TEXT, **NAMES)),
        code_cell("w", widget("box"), widget("html")),
        code_cell("e", {"output_type": "error", "ename": "E", "evalue": HTML[0], "traceback": [HTML[0], HTML[3]]}),
        key_figure=HTML[3], parameters={HTML[3]: HTML[0]}, changed=[HTML[3]], commit=HTML[3], cpu=HTML[1], cores=2,
        seeds={"seed": HTML[3]}, reason=HTML[3], title=HTML[3], state="failed", cell=2,
    )  # fmt: skip


def test_no_attack_runs_and_the_policy_would_stop_one_that_came_through(tmp_path):
    hostile(tmp_path)
    with Browser() as browser:
        for name in ("dice/smoke-12345678/report.html", "index.html"):
            browser.open((tmp_path / "outputs" / "smoke" / name).as_uri())
            browser.ask("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            browser.ask("document.querySelectorAll('.click, figcaption a').forEach(one => one.click())")
            browser.ask("new Promise(done => setTimeout(done, 300))")
            assert browser.ask("window.hit") is None, name
            assert browser.ask("[...document.querySelectorAll('script')].length") == 1, name
            handlers = "[...document.querySelectorAll('*')].flatMap(one => [...one.attributes]).map(one => one.name)"
            assert [one for one in browser.ask(handlers) if one.startswith("on")] == []
            assert [one for one in browser.requested() if "example.org" in one] == []
            browser.ask(
                "var one = document.createElement('div'); one.innerHTML = '<img src=x onerror=\"window.hit = 2\">';"
                "var two = document.createElement('script'); two.textContent = 'window.hit = 3';"
                "document.body.append(one, two); new Promise(done => setTimeout(done, 300))"
            )
            assert browser.ask("window.hit") is None, f"{name}: the policy stops what is put in"


def test_every_page_has_a_policy_that_allows_its_own_script_and_style_only(tmp_path):
    text = hostile(tmp_path)
    for page in (text, (tmp_path / "outputs" / "smoke" / "index.html").read_text()):
        assert 'Content-Security-Policy" content="default-src &#39;none&#39;; style-src &#39;sha256-' in page
        assert "unsafe" not in page.partition("</head>")[0]


def test_svg_is_shown_without_what_could_run(tmp_path):
    text = build(tmp_path, code_cell("s", shown("image/svg+xml", SVG_TEXT, alt="A drawn rectangle")))
    source = text.split('src="data:image/svg+xml;base64,')[1].split('"')[0]
    drawn = base64.b64decode(source).decode()
    assert 'id="drawn"' in drawn
    for word in ("script", "onload", "onclick", "foreignObject", "example.org"):
        assert word not in drawn
    assert 'alt="A drawn rectangle"' in text


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (shown("image/svg+xml", "<svg"), "its image/svg+xml cannot be read: ParseError"),
        (shown("image/svg+xml", "<!DOCTYPE x [<!ENTITY a 'b'>]><svg/>"), "it declares entities"),
        (shown("image/png", "bm8="), "its image/png cannot be read: UnidentifiedImageError"),
        (widget("gone"), "a widget whose state was not saved"),
        (widget("slider"), "&lt;b&gt;rate&lt;/b&gt; (FloatSlider at 0.5) answers in JupyterLab only"),
        (shown("application/pdf", "x"), "application/pdf is no kind that a report can show"),
        (shown("text/html", "<p>x</p>" * 400_000), "HTML of 3,200,000 characters is too long"),
    ],
)
def test_what_cannot_be_shown_leaves_a_box_that_names_the_cell_and_why(tmp_path, output, why):
    text = build(tmp_path, code_cell("first"), code_cell("x", output), code_cell("y", stream("stdout", "after\n")))
    box = text.split('<p class="missing">')[1].split("</p>")[0]
    assert box.startswith("Cell 2: an output is not shown: ")
    assert why in box
    assert "after" in text


def test_figure_inside_a_widgets_output_is_shown(tmp_path):
    text = build(tmp_path, code_cell("w", widget("box"), widget("html")))
    assert 'alt="A figure inside an Output"' in text
    assert "said inside" in text
    assert "words of a widget" in text
    assert "<b>Figure 1.</b>" in text


def test_stream_of_a_notebook_from_elsewhere_is_capped(tmp_path):
    text = build(tmp_path, code_cell("loud", stream("stdout", "the beginning\n" + "x" * 900_000 + "\nthe end")))
    assert len(text) < 250_000
    for words in ("the beginning", "… 750,", "characters left out …", "the end"):
        assert words in text


def test_value_of_a_parameter_never_becomes_markup(tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Config:
        names: list[str] = dataclasses.field(default_factory=lambda: ["[a](https://example.org)", "**b**", "<i>c</i>"])

    monkeypatch.setenv("QUARL_RUN_DIR", str(tmp_path / "run"))
    said: list = []
    monkeypatch.setattr("IPython.display.display", said.append)
    results.Run("dice", Config()).say(f"Of {' and '.join(Config().names)} **one** holds; <u>p</u> < 0.05, 2<3.")
    text = build(tmp_path, code_cell("say", shown("text/markdown", said[0].data)))
    body = text.split('id="cell-0"')[1].split("</section>")[0]
    expected = "Of [a](https://example.org) and **b** and &lt;i&gt;c&lt;/i&gt; <strong>one</strong> holds; &lt;u&gt;p"
    assert expected in body, body


def test_index_counts_every_run(tmp_path):
    suite = tmp_path / "outputs" / "smoke"
    for number, ended in enumerate(("failed", "ok", "ok")):
        folder = suite / "dice" / f"smoke_seed={number}-1234567{number}"
        facts = {"study": "dice", "run_id": folder.name, "started": float(number), "parameters": {"seed": number}}
        states.change(folder, ended, **facts, duration_s=1.0)
    text = index.build(suite).read_text()
    assert "1 study, 3 runs: 2 ok, 1 failed." in text
    assert text.count('<span class="badge failed">') >= 1
