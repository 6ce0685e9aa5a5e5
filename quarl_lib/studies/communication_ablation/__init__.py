"""What does quantizing the weights on their way to the actors gain, beside quantizing the actors' computation?"""

from quarl_lib.studies.communication_ablation.study import Config, curves, publications, run, summarize

__all__ = ["Config", "curves", "publications", "run", "summarize"]
