"""Reports and indexes as a browser shows them: on a phone, in the dark, to a screen reader, on paper."""

from __future__ import annotations

import base64
import json
from importlib import resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import Browser
from test_report import CELLS, code_cell, picture, shown

from quarl_lib.reports import comparison, index, report
from quarl_lib.suite import states

WIDE = "".join(f"<th>a_rather_long_column_{n}</th>" for n in range(14))
WIDE_TABLE = f"<table><tr>{WIDE}</tr><tr>{'<td>1.25</td>' * 14}</tr></table>"
AXE = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations
  .map(one => one.id + ": " + one.nodes.map(node => node.html.slice(0, 120)).slice(0, 3).join(" | ")))"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Write a suite with a good and a failed run, wide tables, long words and long numbers."""
    root = tmp_path_factory.mktemp("pages") / "outputs" / "smoke"
    long_word = {"cell_type": "markdown", "metadata": {}, "source": f"### Long\n\n`{'x' * 120}` and {'y' * 90}"}
    error = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["ValueError: " + "no " * 90]}
    cells = [*CELLS, long_word, code_cell("wide", shown("text/html", WIDE_TABLE)), code_cell("raise", error)]
    for study, state in (("ptq_study", "ok"), ("qat_bit_sweep", "failed")):
        folder = root / study / "smoke_env_ids=CartPole-v1+Pendulum-v1+MountainCarContinuous-v0-12345678"
        (folder / "figures").mkdir(parents=True)
        (folder / "notebook.ipynb").write_text(json.dumps({"cells": cells}))
        (folder / "figures" / "return_over_bits.png").write_bytes(base64.b64decode(picture()))
        for name in ("summary.csv", "log.txt"):
            (folder / name).write_text("")
        (folder / "beside_paper.csv").write_text(
            "what,paper,ours,setting\n" + "CartPole at 8 bits,500,499.5,same\n" * 3
        )
        states.change(
            folder, state, study=study, run_id=folder.name, suite="smoke", preset="smoke", duration_s=75.0, started=1e9,
            parameters={"bits": [2, 4, 8], "agents_dir": "/a/path/" * 12}, changed=["bits"], key_figure="4 bits do",
            cpu="A CPU", cpu_features=["avx2"], cores=2, seeds={"seed": 1}, commit="abc", cell=len(cells) - 1,
            reason="" if state == "ok" else "ValueError: no",
        )  # fmt: skip
        report.build(folder)
    index.build(root)
    second = root.parent / "laptop" / "ptq_study" / "laptop-12345678"
    for folder, mean in ((root / "ptq_study", 499.5), (second, 480.25)):
        folder = next(folder.glob("smoke*"), folder)
        folder.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"agent {n},int8,{mean + n},{mean - 1},{mean + n + 1}\n" for n in range(12))
        (folder / "summary.csv").write_text(f"agent,precision,mean_return,ci_low,ci_high\n{rows}")
    (second / "report.html").write_text("")
    states.change(second, "ok", study="ptq_study", run_id=second.name, suite="laptop", started=1.0, title="PTQ & bits")
    comparison.build([root, root.parent / "laptop"], root / "comparison.html")
    return root


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


def pages(root: Path) -> list[str]:
    found = [root / "index.html", root / "paper.html", *sorted(root.glob("*/*/report.html")), root / "comparison.html"]
    return [path.as_uri() for path in found]


def test_nothing_is_asked_of_any_other_address(suite, browser):
    for page in pages(suite):
        browser.open(page)
        assert [url for url in browser.requested() if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("width", [375, 1280])
def test_no_page_is_wider_than_its_window(suite, browser, width):
    for page in pages(suite):
        browser.open(page, width=width)
        assert browser.ask("document.scrollingElement.scrollWidth") <= width, page


def test_wide_table_scrolls_in_its_own_box(suite, browser):
    browser.open(pages(suite)[2], width=375)
    boxes = browser.ask("[...document.querySelectorAll('.scroll')].map(box => [box.scrollWidth, box.clientWidth])")
    assert max(inner - outer for inner, outer in boxes) > 300
    assert all(outer <= 375 for _, outer in boxes)


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 390)])
def test_accessibility_check_finds_nothing(suite, browser, dark, width):
    script = resources.files("axe_core_python").joinpath("axe.min.js").read_text()
    for page in pages(suite):
        browser.open(page, width=width, dark=dark)
        browser.ask("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        browser.ask(script + "; 0")
        assert browser.ask(AXE) == [], page
    browser.ask(
        "document.querySelector('h1').style.color = '#888'; document.querySelector('h1').style.background = '#999'"
    )
    assert any("color-contrast" in found for found in browser.ask(AXE)), "the check would see a fault"


def test_dark_mode_is_dark_and_figures_keep_a_light_ground(suite, browser):
    grounds = []
    for dark in (False, True):
        browser.open(pages(suite)[2], dark=dark)
        grounds.append(browser.ask("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]
    assert browser.ask("getComputedStyle(document.querySelector('figure img')).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [1280, 390])
def test_first_result_column_is_in_sight(suite, browser, width):
    second = "[...document.querySelectorAll('.scroll tr:first-child > :nth-child(2)')].map(one => one.getClientRects())"
    for page in pages(suite):
        browser.open(page, width=width)
        rights = browser.ask(f"{second}.filter(one => one.length).map(one => one[0].right)")
        assert all(right <= width for right in rights), page
        browser.ask("document.querySelectorAll('.scroll').forEach(box => { box.scrollLeft = 10000; })")
        first = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollLeft).map(box =>"
        moved = browser.ask(
            f"{first} box.querySelector('th').getBoundingClientRect().left - box.getBoundingClientRect().left)"
        )
        assert all(0 <= left < 3 for left in moved), "the first column stays"


def test_first_screen_holds_the_claim_and_the_figure(suite, browser):
    browser.open(next(page for page in pages(suite) if "ptq_study" in page))
    assert browser.ask("document.querySelector('.claim').textContent") == "4 bits do"
    assert browser.ask("document.querySelector('.claim').getBoundingClientRect().bottom") < 900
    assert browser.ask("document.querySelector('figure img').getBoundingClientRect().bottom") < 900


def test_table_is_sorted_and_filtered(suite, browser):
    browser.open(next(page for page in pages(suite) if "comparison" in page))
    names = "[...document.querySelectorAll('.scroll')].at(-1).querySelectorAll('tbody tr:not([hidden]) > :first-child')"
    shown = f"[...{names}].map(one => one.textContent)"
    assert len(browser.ask(shown)) == 12
    click = "[...document.querySelectorAll('.scroll')].at(-1).querySelectorAll('th button')[2].click()"
    browser.ask(click)
    assert browser.ask(shown)[:2] == ["agent 0", "agent 1"], "by number, ascending"
    browser.ask(click)
    assert browser.ask(shown)[:2] == ["agent 11", "agent 10"]
    assert browser.ask("document.querySelectorAll('th[aria-sort=descending]').length") == 1
    search = "var one = [...document.querySelectorAll('.filter input')].at(-1); one.value = 'agent 1'; "
    browser.ask(search + "one.dispatchEvent(new Event('input'))")
    assert sorted(browser.ask(shown)) == ["agent 1", "agent 10", "agent 11"]


def test_wide_table_says_that_it_scrolls(suite, browser):
    browser.open(next(page for page in pages(suite) if "ptq_study" in page), width=390)
    boxes = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 4)"
    hints = browser.ask(f"{boxes}.map(one => one.previousElementSibling.textContent)")
    assert hints
    assert all("the table scrolls" in one for one in hints)


def test_figure_opens_large_on_a_tap_and_closes_again(suite, browser):
    browser.open(next(page for page in pages(suite) if "ptq_study" in page), width=390)
    browser.ask("document.querySelector('button.enlarge').click()")
    assert browser.ask("document.querySelector('dialog.large').open")
    assert browser.ask("document.querySelector('dialog.large img').getBoundingClientRect().width") > 370
    browser.ask("document.querySelector('dialog.large').click()")
    browser.wait("document.querySelector('dialog.large') === null")


def test_code_opens_by_one_button_and_is_left_out_on_paper(suite, browser):
    browser.open(pages(suite)[2])
    opened = "document.querySelectorAll('details.code[open]').length"
    assert browser.ask(opened) == 0
    browser.ask("document.getElementById('open-code').click()")
    assert browser.ask(opened) == browser.ask("document.querySelectorAll('details.code').length") > 3
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.ask("getComputedStyle(document.querySelector('details.code')).display") == "none"
    assert browser.ask("getComputedStyle(document.querySelector('nav.contents')).display") == "none"
    browser.send("Emulation.setEmulatedMedia", media="")


def test_every_picture_is_loaded_and_every_link_leads_somewhere(suite, browser):
    for page in pages(suite):
        browser.open(page)
        browser.ask("document.querySelectorAll('img').forEach(one => { one.loading = 'eager'; })")
        browser.wait("[...document.images].every(one => one.complete)")
        assert browser.ask("[...document.images].every(one => one.naturalWidth > 0)")
        links = browser.ask("[...document.querySelectorAll('a[href]')].map(one => one.getAttribute('href'))")
        folder = Path(unquote(urlsplit(page).path)).parent
        for link in links:
            if link.startswith("#"):
                assert browser.ask(f"document.getElementById({link[1:]!r}) !== null"), link
            else:
                assert (folder / link).exists(), f"{page}: {link}"
