"""Imported once by the server that forks the parts, so that each part starts in milliseconds (all this takes 5 s)."""

import torch._dynamo  # every optimizer brings it in

from quarl_lib.actorq.actor import evaluator
from quarl_lib.actorq.actor import loop as actor
from quarl_lib.actorq.learner import loop as learner
from quarl_lib.actorq.replay import reverb as replay
from quarl_lib.envs import control

__all__ = ["actor", "evaluator", "learner", "replay", "torch"]

control.check_task("dm_control:cartpole:balance")  # brings dm_control and MuJoCo
