"""What every backend gives: an engine that loads packed weights and acts."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quarl_lib.inference.spec import PolicySpec


class Engine(Protocol):
    """A policy ready to act: `load` a packed buffer, then call it with an observation.

    A call takes one observation (float32, `spec.observation_shape`; uint8 for images) and returns its action: a
    float32 array [action_dim], or an int where the head is discrete. With a leading batch axis it returns float32
    [n, action_dim] or int64 [n]. The action array is the caller's to keep. Other float dtypes and non-contiguous
    arrays are converted; a wrong shape, a NaN or an infinity raises ValueError that names the place.
    """

    spec: PolicySpec
    precision: str
    backend: str
    reason: str

    @property
    def weights_version(self) -> int:
        """Return the version that the loaded buffer carries, -1 before the first load."""
        ...

    def load(self, buffer: object, *, copy: bool = False, verify: bool | None = None) -> None:
        """Use the weights of `buffer` (made by `pack` for this spec and precision) from the next call on.

        Without `copy` a native engine reads them where they lie and keeps the buffer alive; the writer must not
        change it meanwhile. `verify` holds the payload to its checksum, which costs one read of all weights: done by
        default when copying. In place only the header's own checksum is held, so that a load costs microseconds: it is
        the writer's protocol (a version before and after) that must tell a half-written payload.
        Raise ValueError, and keep the old weights, if the buffer is truncated, foreign, corrupted, or of another
        layout version.
        """
        ...

    def __call__(self, observation: np.ndarray) -> np.ndarray | int:
        """Return the action for one observation, or the actions for a batch."""
        ...
