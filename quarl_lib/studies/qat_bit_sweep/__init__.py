"""How few bits does a policy need if it is trained with them? (Appendix A, Figure 10)"""

from quarl_lib.studies.qat_bit_sweep.study import Config, run, summarize, weight_levels

__all__ = ["Config", "run", "summarize", "weight_levels"]
