"""What does a trained policy lose when its weights and activations are quantized after training? (Table 2)"""

from quarl_lib.studies.ptq_study.aggregate import aggregate, native
from quarl_lib.studies.ptq_study.study import Config, run, summarize

__all__ = ["Config", "aggregate", "native", "run", "summarize"]
