"""What does a trained policy lose when its weights and activations are quantized after training? (Table 2)"""

from quarl_lib.studies.common.lazy import at_first_use

__getattr__ = at_first_use(
    __name__, aggregate="aggregate native", robustness="robustness", study="Config run summarize"
)
