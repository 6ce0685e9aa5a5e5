"""Take the README's pictures of a suite anew: `python docs/pictures.py outputs/laptop` (needs Chromium)."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from browser import Browser  # noqa: E402

PANE = (880, 1080)
TABLE = "document.querySelector('#beside-the-paper')"


def pane(browser: Browser, address: str, scroll_to: str = "") -> Image.Image:
    """Return a picture of a page, scrolled to an element."""
    browser.open(address, *PANE)
    browser.ask("document.querySelectorAll('img').forEach(one => { one.loading = 'eager'; })")
    browser.wait("[...document.images].every(one => one.complete)")
    browser.ask("document.documentElement.style.scrollBehavior = 'auto'")
    if scroll_to:
        browser.ask(f"{scroll_to}.scrollIntoView({{block: 'center'}})")
    path = HERE / ".pane.png"
    image = Image.open(io.BytesIO(browser.picture(path).read_bytes()))
    path.unlink()
    return image


def side_by_side(panes: list[Image.Image], path: Path) -> None:
    """Save pictures next to each other, with a thin line between them."""
    wide = Image.new("RGB", (sum(one.width for one in panes) + 4 * (len(panes) - 1), PANE[1]), "#c8ccd2")
    left = 0
    for one in panes:
        wide.paste(one, (left, 0))
        left += one.width + 4
    wide.save(path, optimize=True)


def main(suite: Path) -> None:
    """Write `report.png` (head and table of the PTQ study) and `suite.png` (index and front page)."""
    report = next(path for path in sorted(suite.glob("ptq_study/*/report.html"), key=lambda path: path.stat().st_mtime))
    with Browser() as browser:
        address = report.resolve().as_uri()
        side_by_side([pane(browser, address), pane(browser, address, TABLE)], HERE / "report.png")
        index, paper = (path.resolve().as_uri() for path in (suite / "index.html", suite / "paper.html"))
        table = "document.querySelector('#table-2')"
        side_by_side([pane(browser, index), pane(browser, paper, table)], HERE / "suite.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
