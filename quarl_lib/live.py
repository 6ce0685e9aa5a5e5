"""What JupyterLab shows while a study runs: a bar that stays in sight, and a picture that is drawn again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

PICTURE_EVERY_S = 3.0
# On the page itself: what stands in a cell is gone from sight once the view has moved on, as Run All moves it.
_BAR = """(() => {
  const [text, share] = %s;
  let bar = document.getElementById("quarl-progress");
  if (text === null) { if (bar) bar.remove(); return; }
  if (!bar) {
    bar = document.createElement("div");
    bar.id = "quarl-progress";
    bar.setAttribute("role", "status");
    bar.style.cssText = "position:fixed;right:1rem;bottom:2.5rem;z-index:1000;padding:.4rem .8rem;" +
      "border-radius:.4rem;background:#1d2127;color:#fff;font:14px system-ui,sans-serif";
    bar.append(document.createElement("span"), document.createElement("progress"));
    bar.lastChild.style.cssText = "margin-left:.8rem;width:10rem;vertical-align:middle";
    document.body.append(bar);
  }
  bar.firstChild.textContent = text;
  bar.lastChild.value = share;
  bar.lastChild.setAttribute("aria-label", text);
})()"""


class Bar:
    """A progress bar in the corner of JupyterLab's page; it goes when the cell ends, however that ends."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, done: int, total: int, what: str) -> None:
        """Say how far it is."""
        self._display(f"{what} {done:,} of {total:,}", done / max(total, 1))

    def _display(self, text: str | None, share: float = 1.0) -> None:
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        data = {"application/javascript": _BAR % json.dumps([text, share]), "text/plain": ""}
        if self._handle is not None:
            self._handle.update(data, raw=True)
        elif text is not None and (shell := get_ipython()) is not None:
            self._handle = display(data, raw=True, display_id=True)
            shell.events.register("post_run_cell", self._ended)

    def _ended(self, _: object) -> None:
        from IPython.core.getipython import get_ipython

        self._display(None)
        self._handle = None
        shell = get_ipython()
        assert shell is not None
        shell.events.unregister("post_run_cell", self._ended)


class Picture:
    """A figure that is drawn again at most every three seconds, where it was first shown."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw
        self._handle: Any = None
        self._last = 0.0

    def show(self) -> None:
        """Draw what there is by now; nothing as long as `draw` returns None."""
        if time.monotonic() - self._last < PICTURE_EVERY_S:
            return
        import matplotlib.pyplot as plt
        from IPython.display import display

        drawn = self.draw()
        self._last = time.monotonic()
        if drawn is None:
            return
        figure = getattr(drawn, "figure", drawn)
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        plt.close(figure)
