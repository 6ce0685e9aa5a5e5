"""Where does an actor's time go at each precision, in the authors' design and in ours?"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(__name__, study="Config run summarize system")
