"""One way to run an actor, as the studies of throughput compare them."""

from __future__ import annotations

from dataclasses import dataclass

from quarl_lib.actorq.config import Config
from quarl_lib.envs import control

DESIGNS = ("packed", "authors")


@dataclass(frozen=True)
class Setup:
    """One way to run an actor.

    design: "packed" is ours (one float32 vector a transition, a packed buffer, the version asked for first);
        "authors" is the paper's recipe (Acme's adder, torch.ao, a state_dict through Reverb at every pull).
    communication_precision: "same" as `precision`, or another that the actor converts.

    Raises:
        ValueError: a combination that the design does not have.
    """

    task: str = "dm_control:cartpole:balance"
    hidden: tuple[int, ...] = (2048, 2048, 2048)
    precision: str = "int8"
    update_period: int = 300
    design: str = "packed"
    communication_precision: str = "same"
    transport: str = "shared_memory"
    backend: str = "auto"
    envs_per_actor: int = 1
    replay: str = "auto"

    def __post_init__(self) -> None:
        if self.design not in DESIGNS:
            raise ValueError(f"design={self.design!r}: choose one of {', '.join(DESIGNS)}")
        if self.design == "authors":
            from quarl_lib.inference.backends.torch import SUPPORTED

            if self.precision not in SUPPORTED:
                raise ValueError(f"precision={self.precision!r}: the authors' recipe has {', '.join(SUPPORTED)}")
            if self.transport != "reverb" or self.communication_precision != "same":
                raise ValueError(
                    f"transport={self.transport!r}, communication_precision={self.communication_precision!r}: "
                    "the authors' recipe sends the actor's own state_dict through reverb"
                )
        self.config()

    def config(self) -> Config:
        """Return the options of an actor that works alone."""
        return Config(
            task=self.task,
            algorithm="dqn" if control.is_discrete(self.task) else "d4pg",
            precision=self.precision,
            communication_precision=self.communication_precision,
            transport=self.transport,
            replay=self.replay,
            backend=self.backend,
            update_period=self.update_period,
            policy_hidden=self.hidden,
            adder="structured" if self.design == "packed" else "acme",
            n_actors=1,
            envs_per_actor=self.envs_per_actor,
            actor_steps=1 << 40,
            samples_per_insert=0.0,
            min_replay=1,
        )
