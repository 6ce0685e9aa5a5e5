"""How fast can a policy act at each precision, on each engine, and how close is that to the memory's limit?"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(__name__, study="Config run summarize")
