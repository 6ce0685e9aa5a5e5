"""How much faster does one's own training get with an engine in its rollouts, and does it still learn?"""

from quarl_lib.studies.quantized_rollouts.study import Config, run, summarize

__all__ = ["Config", "run", "summarize"]
