"""How fast can a policy act at each precision, on each engine, and how close is that to the memory's limit?"""

from quarl_lib.studies.inference_engines.study import Config, run, summarize

__all__ = ["Config", "run", "summarize"]
