"""Draw the differences between two summaries, row by row."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

MOST_ROWS = 30
_LATER, _APART = "#555d68", "#b3400d"


def figure(names: Sequence[str], deltas: Sequence[float], apart: Sequence[bool], metric: str, sides: str) -> str:
    """Return a figure as HTML: a dot a row at its difference, the largest on top; those beyond noise in colour."""
    from matplotlib.figure import Figure

    order = sorted(range(len(deltas)), key=lambda n: -abs(deltas[n]))[:MOST_ROWS][::-1]
    drawn = Figure(figsize=(8, 1.2 + 0.24 * len(order)), layout="constrained")
    ax = drawn.subplots()
    ax.axvline(0, color="#9aa3ae", linewidth=1)
    for place, n in enumerate(order):
        colour = _APART if apart[n] else _LATER
        ax.plot([0, deltas[n]], [place, place], color=colour, linewidth=1)
        ax.plot(deltas[n], place, "o", color=colour, markersize=5)
    ax.set(yticks=range(len(order)), yticklabels=[names[n] for n in order], xlabel=f"difference of {metric}, {sides}")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=110)
    left_out = f"; the {MOST_ROWS} largest of {len(deltas)}" if len(deltas) > MOST_ROWS else ""
    beyond = f", {sum(apart)} of them with intervals that do not overlap (coloured)" if any(apart) else ""
    said = html.escape(
        f"Difference of {metric}, {sides}, in {len(deltas)} rows that differ{beyond}{left_out}.", quote=True
    )
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    picture = f'<img src="{source}" alt="{said}">'
    button = (
        f'<button type="button" class="enlarge" title="Enlarge the figure of {html.escape(metric)}">{picture}</button>'
    )
    return f"<figure>{button}<figcaption>{said}</figcaption></figure>"
