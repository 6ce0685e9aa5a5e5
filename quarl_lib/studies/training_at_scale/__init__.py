"""What would quantized actors buy on a machine with a GPU learner and N actors?"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(__name__, study="Config border run summarize", validation="validate")
