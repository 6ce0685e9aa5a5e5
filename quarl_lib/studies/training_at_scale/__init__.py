"""What would quantized actors buy on a machine with a GPU learner and N actors?"""

from quarl_lib.studies.training_at_scale.study import Config, border, run, summarize
from quarl_lib.studies.training_at_scale.validation import validate

__all__ = ["Config", "border", "run", "summarize", "validate"]
