"""What does quantizing the weights on their way to the actors gain, beside quantizing the actors' computation?"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(__name__, study="Config curves publications run summarize")
