"""Where does an actor's time go at each precision, in the authors' design and in ours?"""

from quarl_lib.studies.runtime_breakdown.study import Config, run, summarize, system

__all__ = ["Config", "run", "summarize", "system"]
