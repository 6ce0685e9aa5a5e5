"""How does the time for a fixed number of steps fall with the number of actors, and what stops it?"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(__name__, study="Config run summarize", projection="project")
