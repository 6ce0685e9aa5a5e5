"""How much faster does one's own training get with an engine in its rollouts, and does it still learn?"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(__name__, study="Config run summarize")
