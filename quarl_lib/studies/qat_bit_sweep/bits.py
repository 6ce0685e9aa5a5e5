"""Of how many bits a policy of the sweep is, and on which grid: the paper's, or that of the integer engines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from quarl_lib.quantization.qat import QATConfig


@dataclass(frozen=True)
class Bits:
    """Bits of weights, activations, observation, and of the first and last layer's weights; 32 is fp32."""

    weight: int
    activation: int
    observation: int
    edge: int
    grid: str = "affine"

    @classmethod
    def parse(cls, text: str) -> Bits:
        """Read the engines' grid ("int4") or the paper's ("4" for everything, "4/8/16", "4/8/16/8").

        The parts are weights/activations/observation/weights of the first and the last layer, which "int4" fixes too.

        Raises:
            ValueError: the text has another form, or a width is neither 32 nor from 2 to 16.
        """
        if match := re.fullmatch(r"int([2-8])(a16)?", text):
            on_engine = QATConfig.for_engine("int8a16" if match[2] else "int8")
            return cls(int(match[1]), on_engine.activation_bits, on_engine.observation_bits, 8, "engine")
        if not re.fullmatch(r"\d+(/\d+/\d+(/\d+)?)?", text):
            raise ValueError(
                f"bits={text!r}: give one number, weights/activations/observation[/edge layers], or int2 to int8"
            )
        parts = [int(part) for part in text.split("/")]
        weight, activation, observation, edge = parts * 4 if len(parts) == 1 else [*parts, parts[0]][:4]
        bits = cls(weight, activation, observation, edge)
        try:
            bits.config("qat")
        except ValueError as error:
            raise ValueError(f"bits={text!r}: {error}") from error
        return bits

    def __str__(self) -> str:
        *parts, grid = dataclasses.astuple(self)
        if grid == "engine":
            return f"int{self.weight}" + ("a16" if self.activation == 16 else "")
        if len(set(parts)) == 1:
            return str(self.weight)
        return "/".join(map(str, parts[:3] if self.edge == self.weight else parts))

    def config(self, method: str) -> QATConfig:
        """Return the quantization of a method: steps are learned where its name ends in "lsq"."""
        return QATConfig(
            self.weight, self.activation, self.observation, self.edge,
            method="lsq" if method.endswith("lsq") else "minmax", grid=self.grid,
        )  # fmt: skip


def fewest(texts: Sequence[str]) -> Bits:
    """Return the one with the fewest bits of a weight, among equals an engine's."""
    return min(map(Bits.parse, texts), key=lambda bits: (bits.weight, bits.grid != "engine"))


FP32 = Bits(32, 32, 32, 32)
