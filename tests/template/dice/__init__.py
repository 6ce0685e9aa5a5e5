"""How far is the mean of a few rolls from the expected one? The smallest study there can be: copy it to begin."""

from dice.study import Config, run, summarize

__all__ = ["Config", "run", "summarize"]
