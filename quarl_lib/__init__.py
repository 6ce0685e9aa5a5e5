"""Quantized reinforcement-learning policies: studies, inference engines, ActorQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quarl_lib.deploy.policy import QuantizedPolicy

__version__ = "0.1.0"
__all__ = ["QuantizedPolicy"]


def __getattr__(name: str) -> type[QuantizedPolicy]:
    # On first use: whoever imports a part of this package pays for that part only.
    if name == "QuantizedPolicy":
        from quarl_lib.deploy.policy import QuantizedPolicy

        return QuantizedPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
