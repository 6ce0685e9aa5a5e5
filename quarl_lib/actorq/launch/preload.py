"""Imported once by the server that forks the parts, so that each part starts in milliseconds (all this takes 5 s)."""

import contextlib

import torch._dynamo  # every optimizer brings it in

from quarl_lib.actorq.actor import evaluator
from quarl_lib.actorq.actor import loop as actor
from quarl_lib.actorq.learner import loop as learner
from quarl_lib.envs import control

__all__ = ["actor", "evaluator", "learner", "torch"]

# What is not installed is missed by the runs that need it, and named there.
with contextlib.suppress(ImportError):
    import quarl_lib.actorq.replay.acme_adder  # noqa: F401  # brings Reverb and TensorFlow
with contextlib.suppress(ValueError):
    control.check_task("dm_control:cartpole:balance")  # brings dm_control and MuJoCo
