"""Imported once by the server that forks the parts, so that each part starts in milliseconds (TensorFlow takes 4 s)."""

from quarl_lib.actorq import actor, replay  # noqa: F401
from quarl_lib.envs import control

control.check_task("dm_control:cartpole:balance")  # brings dm_control and MuJoCo
