"""How much sooner, and with how much less energy, do quantized actors bring a learner to the same return?"""

from quarl_lib.studies.actorq_training.study import Config, run, summarize

__all__ = ["Config", "run", "summarize"]
