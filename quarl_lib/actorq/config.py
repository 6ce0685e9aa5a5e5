"""Every option of one ActorQ run, checked on the way in."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Real

from quarl_lib.envs import control, registry
from quarl_lib.extras import install_line
from quarl_lib.inference import PRECISIONS
from quarl_lib.inference.engines import BACKENDS

ALGORITHMS = ("d4pg", "dqn")
TRANSPORTS = ("shared_memory", "reverb")
ADDERS = ("structured", "acme")
REPLAYS = ("auto", "reverb", "local")
BACKEND_NAMES = ("auto", *BACKENDS)
LEARNER_QUANTIZATIONS = ("none", "engine")
MAX_ACTORS = 10_000  # each is a process; the broadcast could number a hundred times as many


REVERB_INSTALL = f"{install_line('reverb')} (Linux on x86-64, Python 3.11)"


def has_reverb() -> bool:
    """Say whether Reverb and the TensorFlow that it needs are installed."""
    return all(find_spec(name) is not None for name in ("reverb", "tensorflow"))


TYPES: dict[str, tuple[type, str]] = {
    "str": (str, "a text"), "int": (int, "a whole number"), "float": (Real, "a number"),
    "bool": (bool, "True or False"), "tuple": (tuple, "a tuple"),
}  # fmt: skip


def _require(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise ValueError(f"{name}={value!r}: {remedy}")


@dataclass(frozen=True)
class Config:
    """Options of one run: one task, one precision, one seed. Plain values, so that any process can unpickle it.

    Raises:
        ValueError: a value is impossible alone or beside another; the text names parameter, value and remedy.
    """

    # What is learned, and by which algorithm.
    task: str = "dm_control:cartpole:balance"
    algorithm: str = "d4pg"
    seed: int = 0
    import_modules: tuple[str, ...] = ()  # imported in every process first: they register environments

    # Precision of the actors, of what travels to them ("same": as the actors'), and how it travels.
    precision: str = "fp32"
    communication_precision: str = "same"
    transport: str = "shared_memory"
    backend: str = "auto"

    # Actors. Periods in actor steps of one actor; sigma and epsilon are spread over the actors.
    n_actors: int = 2
    envs_per_actor: int = 1  # copies of the environment that an actor plays side by side
    actor_steps: int = 60_000
    update_period: int = 100
    sigma_max: float = 0.6
    epsilon_min: float = 0.02
    epsilon_max: float = 0.4

    # Replay. "auto": Reverb where it is installed, else shared memory ("local"). samples_per_insert 0: no ratio is
    # held; error_buffer 0: the smallest that cannot deadlock.
    replay: str = "auto"
    adder: str = "structured"
    n_step: int = 5
    samples_per_insert: float = 16.0
    error_buffer: float = 0.0
    min_replay: int = 1_000
    max_replay: int = 100_000
    flush_period: int = 32

    # Learner. publish_period and target_update_period in learner steps.
    batch_size: int = 64
    discount: float = 0.99
    publish_period: int = 20
    target_update_period: int = 100
    policy_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    max_gradient_norm: float = 40.0
    learner_threads: int = 1
    device: str = "auto"

    # "engine": the learner's policy computes on the actors' grid, so that what acts, what is learned and what is
    # deployed are one policy; gradients pass straight through.
    learner_quantization: str = "none"

    # Networks. DQN's Q network has the policy's hidden sizes and the critic's learning rate.
    policy_hidden: tuple[int, ...] = (128, 128, 128)
    critic_hidden: tuple[int, ...] = (256, 256)
    critic_layer_norm: bool = True
    num_atoms: int = 51
    vmin: float = 0.0
    vmax: float = 100.0
    double_dqn: bool = True

    # When the run ends, beside actor_steps. max_seconds 0: no limit of time.
    max_seconds: float = 0.0

    # How long a part may show no sign of life before it counts as hung; infinite: for ever.
    stall_s: float = 30.0

    # Evaluator (eval_period in actor steps of all actors). The run ends once `stop_evaluations` evaluations in a row
    # have a mean return of at least stop_return; infinite: it takes all its actor steps.
    eval_period: int = 2_000
    eval_episodes: int = 5
    eval_deployed: bool = True  # also as the actors run it
    stop_return: float = math.inf
    stop_evaluations: int = 2

    # Checkpoints, every so many learner steps; 0: none.
    checkpoint_every: int = 0
    resume: bool = False

    # Energy, where no counter can be read: a fixed model, the same on both sides of every ratio.
    cpu_watts: float = 100.0
    ram_watts: float = 10.0
    carbon_grams_per_kwh: float = 475.0

    def __post_init__(self) -> None:
        self._check_types()
        registry.import_modules(self.import_modules)
        control.check_task(self.task)
        self._check_choices()
        self._check_numbers()
        self._check_replay()
        self._check_learner()

    @property
    def local_replay(self) -> bool:
        """Whether transitions go through shared memory, without a server."""
        needs_server = self.adder == "acme" or self.transport == "reverb"
        return self.replay == "local" or (self.replay == "auto" and not needs_server and not has_reverb())

    @property
    def weights_precision(self) -> str:
        """The precision that travels to the actors."""
        return self.precision if self.communication_precision == "same" else self.communication_precision

    @property
    def replay_error_buffer(self) -> float:
        """How far samples may run ahead of or behind the ratio, in samples.

        It covers what may be in flight at once: the sampler's prefetch (two batches), what each actor writes
        between two flushes, and Reverb's own minimum of twice the ratio.
        """
        if self.error_buffer:
            return self.error_buffer
        in_flight = self.samples_per_insert * (self.flush_period + self.envs_per_actor - 1) * self.n_actors
        return max(4.0 * self.batch_size + in_flight, self.smallest_error_buffer)

    @property
    def smallest_error_buffer(self) -> float:
        """Below this, Reverb's ratio could block writers and the sampler at once."""
        return 2.0 * max(1.0, self.samples_per_insert)

    def replace(self, **changes: object) -> Config:
        """Return a checked copy with some options changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), str(field.type).partition("[")[0]
            accepted, remedy = TYPES[kind]
            good = isinstance(value, accepted) and isinstance(value, bool) == (kind == "bool")
            _require(good, field.name, value, f"give {remedy}")

    def _check_choices(self) -> None:
        for name, allowed in (
            ("algorithm", ALGORITHMS), ("precision", PRECISIONS), ("communication_precision", ("same", *PRECISIONS)),
            ("transport", TRANSPORTS), ("adder", ADDERS), ("replay", REPLAYS), ("backend", BACKEND_NAMES),
            ("learner_quantization", LEARNER_QUANTIZATIONS),
        ):  # fmt: skip
            value = getattr(self, name)
            _require(value in allowed, name, value, f"choose one of {', '.join(allowed)}")
        suits = self.algorithm == "dqn" if control.is_discrete(self.task) else self.algorithm == "d4pg"
        remedy = "d4pg needs continuous actions, dqn discrete ones; {} has {} actions".format(
            self.task, "discrete" if control.is_discrete(self.task) else "continuous"
        )
        _require(suits, "algorithm", self.algorithm, remedy)

    def _check_numbers(self) -> None:
        for name in (
            "n_actors", "envs_per_actor", "actor_steps", "update_period", "n_step", "min_replay", "max_replay",
            "flush_period", "batch_size", "publish_period", "target_update_period", "learner_threads", "eval_period",
            "eval_episodes", "stop_evaluations",
        ):  # fmt: skip
            value = getattr(self, name)
            _require(isinstance(value, int) and value >= 1, name, value, "give a whole number of at least 1")
        _require(self.n_actors <= MAX_ACTORS, "n_actors", self.n_actors, f"give at most {MAX_ACTORS}")
        _require(not math.isnan(self.stop_return), "stop_return", self.stop_return, "give a number, or inf for none")
        _require(self.stall_s > 0, "stall_s", self.stall_s, "give seconds above 0, more than any step takes")
        for name in ("checkpoint_every", "seed"):
            value = getattr(self, name)
            _require(isinstance(value, int) and value >= 0, name, value, "give a whole number of at least 0")
        for name in ("policy_learning_rate", "critic_learning_rate", "max_gradient_norm", "cpu_watts"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, name, value, "give a number above 0")
        for name in (
            "sigma_max",
            "ram_watts",
            "carbon_grams_per_kwh",
            "samples_per_insert",
            "error_buffer",
            "max_seconds",
        ):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, name, value, "give a number of at least 0")
        _require(0 <= self.discount <= 1, "discount", self.discount, "give a number in [0, 1]")
        _require(0 <= self.epsilon_min <= self.epsilon_max <= 1, "epsilon_min", self.epsilon_min,
                 f"give 0 <= epsilon_min <= epsilon_max <= 1 (epsilon_max={self.epsilon_max})")  # fmt: skip
        for name in ("policy_hidden", "critic_hidden"):
            sizes = getattr(self, name)
            good = isinstance(sizes, tuple) and len(sizes) >= 1 and all(isinstance(n, int) and n >= 1 for n in sizes)
            _require(good, name, sizes, "give a tuple of at least one layer size, each at least 1")

    def _check_replay(self) -> None:
        _require(self.adder != "acme" or self.envs_per_actor == 1, "envs_per_actor", self.envs_per_actor,
                 "Acme's adder writes one environment's transitions; give 1, or adder='structured'")  # fmt: skip
        needing = (
            ("replay", "reverb", "local"),
            ("adder", "acme", "structured"),
            ("transport", "reverb", "shared_memory"),
        )
        for name, value, instead in needing:
            _require(getattr(self, name) != value or has_reverb(), name, value,
                     f"Reverb is not installed; give {instead!r}, or {REVERB_INSTALL}")  # fmt: skip
        for name, value in (("adder", "acme"), ("transport", "reverb")):
            _require(self.replay != "local" or getattr(self, name) != value, "replay", self.replay,
                     f"{name}={value!r} needs Reverb's server; give replay='reverb'")  # fmt: skip
        for limit in ("max_replay", "actor_steps"):
            remedy = f"learning would never start; give at most {limit}={getattr(self, limit)}"
            _require(self.min_replay <= getattr(self, limit), "min_replay", self.min_replay, remedy)
        if self.error_buffer and self.samples_per_insert:
            _require(self.error_buffer >= self.smallest_error_buffer, "error_buffer", self.error_buffer,
                     f"writers and sampler would block each other; give at least {self.smallest_error_buffer:g} "
                     f"(twice samples_per_insert={self.samples_per_insert:g}), or 0 to have it chosen")  # fmt: skip
            _require(2 * self.error_buffer >= self.batch_size, "error_buffer", self.error_buffer,
                     f"no batch could be sampled; give at least half of batch_size={self.batch_size}")  # fmt: skip

    def _check_device(self) -> None:
        if self.device in ("auto", "cpu"):
            return
        remedy = "choose auto, cpu, cuda or cuda:<number>"
        _require(bool(re.fullmatch(r"cuda(:\d+)?", str(self.device))), "device", self.device, remedy)
        import torch  # only where a GPU is asked for

        count, wanted = torch.cuda.device_count(), int(self.device.partition(":")[2] or 0)
        _require(wanted < count, "device", self.device, f"this machine has {count} CUDA devices; choose auto or cpu")

    def _check_learner(self) -> None:
        self._check_device()
        _require(isinstance(self.num_atoms, int) and 2 <= self.num_atoms <= 1001, "num_atoms", self.num_atoms,
                 "a distribution needs 2 to 1001 atoms; the paper's D4PG has 51")  # fmt: skip
        finite = math.isfinite(self.vmin) and math.isfinite(self.vmax)
        _require(finite and self.vmin < self.vmax, "vmin", self.vmin,
                 f"the atoms span [vmin, vmax], so give vmin below vmax={self.vmax}")  # fmt: skip
        if self.learner_quantization == "engine":
            name = "learner_quantization"
            _require(re.fullmatch(r"int\d+(a16)?", self.precision) is not None, name, "engine",
                     f"actors at precision={self.precision!r} have no grid to learn on; give 'none', or int8, int8a16, "
                     "int4, int3 or int2")  # fmt: skip
            _require(self.weights_precision in (self.precision, "fp32"), name, "engine",
                     f"with communication_precision={self.communication_precision!r} the actors round twice; give "
                     "'same' or 'fp32'")  # fmt: skip
