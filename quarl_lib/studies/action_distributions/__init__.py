"""How do a quantized policy's actions differ from fp32's, observation by observation? (Figure 3, appendix C)"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(__name__, study="Config run summarize")
