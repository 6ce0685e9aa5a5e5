"""How much sooner, and with how much less energy, do quantized actors bring a learner to the same return?"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(__name__, study="Config run", summary="summarize")
