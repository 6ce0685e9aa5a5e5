"""How few bits does a policy need if it is trained with them? (Appendix A, Figure 10)"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(
    __name__, study="Config run weight_levels", summary="summarize", variants="beside_base", costs="of_agents"
)
