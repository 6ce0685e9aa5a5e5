"""How do a quantized policy's actions differ from fp32's, observation by observation? (Figure 3, appendix C)"""

from quarl_lib.studies.action_distributions.study import Config, run, summarize

__all__ = ["Config", "run", "summarize"]
