"""Where the time of a training goes, and what is left to gain."""

from __future__ import annotations

from dataclasses import dataclass

WORTH_IT = 1.05  # below this a run's own spread hides the gain


@dataclass(frozen=True)
class Gain:
    """Shares of a training's time as it stands, without an engine; they add up to 1.

    `environment_share` is all of a rollout but inference: environments, callbacks, the library's bookkeeping.
    """

    inference_share: float
    environment_share: float
    learning_share: float

    @property
    def limit(self) -> float:
        """Return how many times faster training would be if inference cost nothing."""
        return 1.0 / (1.0 - self.inference_share)

    @property
    def worthwhile(self) -> bool:
        """Tell whether there is anything to gain."""
        return self.limit >= WORTH_IT

    def __str__(self) -> str:
        text = f"inference is {self.inference_share:.0%} of your time; at best {self.limit:.2f} x"
        return text if self.worthwhile else f"{text}: there is nothing to gain"


@dataclass(frozen=True)
class Report:
    """What the engine did for a training so far."""

    precision: str
    backend: str
    steps: int  # of environments, acted on by the engine
    total_s: float  # of rollouts and learning, wall time
    inference_share: float  # acting, new weights, and values at a rollout's end
    environment_share: float  # all else of a rollout, callbacks included
    learning_share: float
    before: Gain  # the same shares if the model's own forward had acted: it did so too in the first calls, timed
    updates: int
    payload_bytes: int  # of one update
    update_us: float  # of one update, on average
    age_steps: float  # environment steps since the engine got the weights it acted on, on average

    @property
    def speedup(self) -> float:
        """Return time without the engine over time with it, as estimated from the probe."""
        return (1.0 - self.inference_share) / (1.0 - self.before.inference_share)

    def __str__(self) -> str:
        verdict = "" if self.speedup >= WORTH_IT else ", which is nothing to speak of"
        return (
            f"{self.precision} on {self.backend}, {self.steps:,} steps: inference {self.inference_share:.0%} of the "
            f"time, environment {self.environment_share:.0%}, learning {self.learning_share:.0%}; before: inference "
            f"{self.before.inference_share:.0%}, at best {self.before.limit:.2f} x. About {self.speedup:.2f} x"
            f"{verdict}. {self.updates:,} updates of {self.payload_bytes:,} bytes in {self.update_us:.0f} us each; "
            f"weights acted on were {self.age_steps:.0f} steps old."
        )


def shares(inference_s: float, environment_s: float, learning_s: float) -> Gain:
    """Return the shares of three times; raise ValueError where nothing was timed."""
    total = inference_s + environment_s + learning_s
    if total <= 0:
        raise ValueError("nothing was timed yet: let model.learn run first")
    return Gain(inference_s / total, environment_s / total, learning_s / total)
