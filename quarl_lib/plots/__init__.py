"""Figures: each takes a long-form table and an optional Axes, and returns the Axes."""

from quarl_lib.plots.theme import CYCLE, MARKERS, PRECISION_COLORS, PRECISION_MARKERS, axes_or_new, better, theme

__all__ = ["CYCLE", "MARKERS", "PRECISION_COLORS", "PRECISION_MARKERS", "axes_or_new", "better", "theme"]
