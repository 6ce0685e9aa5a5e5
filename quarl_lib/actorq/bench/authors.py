"""The authors' recipe on the actor's side, to hold ours against: torch.ao, a pickled state_dict, fetched at every pull.

After harvard-edge/QuaRL, actorQ/d4pg (pytorch_actors.py, parameter_broadcaster.py). Where that code wastes more than
its recipe must (a gradient graph per action, TensorFlow to join the observation's arrays), it is granted the better
way, so that what is measured against it is not flattered.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from quarl_lib.actorq.timing import StageTimer
from quarl_lib.actorq.weights.broadcast import Subscriber
from quarl_lib.inference.backends.torch import SUPPORTED, module_from_spec, quantize_dynamic
from quarl_lib.inference.spec import PolicySpec, Weights


def make_module(spec: PolicySpec, weights: Weights, precision: str) -> nn.Module:
    """Return the policy, a bounded head included, dynamically quantized by torch.ao below fp32.

    Raises:
        ValueError: torch.ao has no such precision.
    """
    if precision not in SUPPORTED:
        raise ValueError(f"precision={precision!r}: the authors' recipe has {', '.join(SUPPORTED)}")
    module = module_from_spec(spec, weights)
    return module if precision == "fp32" else quantize_dynamic(module, precision)


def serialize(module: nn.Module) -> bytes:
    """Return what the learner sends: the pickled state_dict."""
    return pickle.dumps(module.state_dict())


class TorchPolicy:
    """Runs the module on one observation, a vector or a dict of arrays."""

    def __init__(self, spec: PolicySpec, module: nn.Module) -> None:
        self.module, self._discrete = module, spec.head.discrete

    def __call__(self, observation: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray | int:
        """Return the action."""
        if isinstance(observation, Mapping):
            observation = np.concatenate([part.reshape(-1) for part in observation.values()])
        with torch.inference_mode():
            outputs = self.module(torch.from_numpy(observation).reshape(1, -1)).flatten()
            return int(outputs.argmax()) if self._discrete else outputs.numpy()


class StateDictPuller:
    """Fetches, unpickles and loads at every pull, new or not; loading repacks quantized weights."""

    def __init__(self, module: nn.Module, subscriber: Subscriber) -> None:
        self._module, self._subscriber = module, subscriber
        self.fetched = self.fetched_bytes = 0

    def __call__(self, timer: StageTimer) -> bool:
        """Return True: something was fetched."""
        message = self._subscriber.fetch().tobytes()
        self.fetched, self.fetched_bytes = self.fetched + 1, self.fetched_bytes + len(message)
        timer.lap("pull")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = pickle.loads(message)
            timer.lap("deserialize")
            self._module.load_state_dict(state)
        timer.lap("load_weights")
        return True
