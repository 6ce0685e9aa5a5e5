"""Look around in finished runs: choose one, filter its rows, see the study's own figures redrawn."""

from quarl_lib.reports.explore.panel import show

__all__ = ["show"]
