"""What the study of quantized rollouts says in words, from its summary alone."""

from __future__ import annotations

import pandas as pd

from quarl_lib.studies.common.intervals import brackets

RECIPE = ["algorithm", "env_id", "n_envs", "hidden"]
WIDE = 256  # from this width on, the bits may add to what the engine gains


def engine_rows(summary: pd.DataFrame, precision: str = "int8", correction: str = "behaviour") -> pd.DataFrame:
    """Return one row per recipe at a precision and correction."""
    return summary[(summary.precision == precision) & (summary.correction == correction)]


def speed(summary: pd.DataFrame) -> str:
    """Say per recipe how much faster training got, and the limit that inference's share sets."""
    lines = []
    for row in engine_rows(summary, _finest_integer(summary)).itertuples():
        gains = f"{row.speedup:.2f} x {_interval(row)}"
        gains += "" if row.speedup_low > 1 else ", no gain beyond the interval,"
        lines.append(
            f"- **{_name(row)}**: {gains} at {row.precision}; inference was {row.inference_share:.0%} of plain's time, "
            f"so at best {row.limit_speedup:.2f} x."
        )
    return "\n".join(lines)


def slower(summary: pd.DataFrame) -> str:
    """Say where an engine costs time."""
    rows = summary[(summary.precision != "plain") & (summary.speedup_high < 1)]
    said = [f"{_name(row)} {row.precision} ({row.speedup:.2f} x {_interval(row)})" for row in rows.itertuples()]
    if not said:
        return "No cell is slower than plain beyond its interval."
    return f"Slower than plain beyond the interval: {'; '.join(said)}."


def bits_beside_engine(summary: pd.DataFrame) -> str:
    """Say what quantization adds beside the engine: int8's speed-up over the fp32 engine's."""
    both = engine_rows(summary, "int8").merge(engine_rows(summary, "fp32"), on=RECIPE, suffixes=("", "_fp32"))
    if not len(both):
        return "int8 and fp32 were not both measured: what bits add beside the engine is not known here."
    ratio = both.speedup / both.speedup_fp32
    wide = both.hidden.map(lambda text: max(map(int, text.split("-"))) >= WIDE)
    parts = []
    if (~wide).any():
        small = ratio[~wide]
        parts.append(
            f"For small networks the engine is the gain, not the bits: int8 over the fp32 engine is "
            f"{small.min():.2f} to {small.max():.2f} x."
        )
    for row, value in zip(both[wide].itertuples(), ratio[wide], strict=True):
        verdict = "the bits add to it" if value >= 1.1 else "even there fp32 learning takes most of the time"
        parts.append(f"At {row.hidden} ({row.algorithm} {row.env_id}) it is {value:.2f} x: {verdict}.")
    return "What quantization adds beside the engine. " + " ".join(parts)


def learning(summary: pd.DataFrame) -> str:
    """Say in which cells training with the policy's own log-probabilities ends as plain does, and which cannot tell."""
    rows = summary[(summary.precision != "plain") & (summary.correction == "behaviour")]
    differs = [_change(row) for row in rows[~rows.learns_alike.astype(bool)].itertuples()]
    blind = [f"{_name(row)} {row.precision}" for row in rows[~rows.tells_a_fifth.astype(bool)].itertuples()]
    said = f"In {len(rows) - len(differs)} of {len(rows)} cells the paired interval of the final return holds 0"
    said += f"; not in {'; '.join(differs)}." if differs else "."
    if blind:
        said += f" Too few seeds or steps to tell a loss of a fifth of the range: {'; '.join(blind)}."
    return said


def corrections(summary: pd.DataFrame) -> str:
    """Say what other corrections than the library's did to the final return."""
    rows = summary[summary.correction != "behaviour"]
    if not len(rows):
        return "No other correction was measured."
    return "Against plain: " + "; ".join(_change(row) for row in rows.itertuples()) + "."


def key_figure(summary: pd.DataFrame) -> str:
    """Return the run's one line: the largest gain, and the smallest."""
    rows = engine_rows(summary, _finest_integer(summary))
    best, worst = rows.loc[rows.speedup.idxmax()], rows.loc[rows.speedup.idxmin()]
    alike = int(rows.learns_alike.astype(bool).sum())
    said = (
        f"With {best.precision} rollouts, Stable-Baselines3's {best.algorithm} trains on {best.env_id} at "
        f"{best.speedup:.2f} x {_interval(best)} its plain speed, in processor time"
    )
    if len(rows) > 1:
        said += f"; the recipe that gains least is {worst.algorithm} on {worst.env_id} at {worst.speedup:.2f} x"
    return f"{said}. In {alike} of {len(rows)} recipes the final return does not differ by more than chance."


def _finest_integer(summary: pd.DataFrame) -> str:
    engines = [precision for precision in dict.fromkeys(summary.precision) if precision != "plain"]
    return "int8" if "int8" in engines else engines[-1]


def _name(row: object) -> str:
    envs = f"{row.n_envs} env{'s' if row.n_envs > 1 else ''}"  # type: ignore[attr-defined]
    return f"{row.algorithm} {row.env_id}, {envs}, {row.hidden}"  # type: ignore[attr-defined]


def _interval(row: object) -> str:
    return brackets(row.speedup_low, row.speedup_high, "seed")  # type: ignore[attr-defined]


def _change(row: object) -> str:
    interval = brackets(row.paired_ci_low, row.paired_ci_high, "seed", "+.0f")  # type: ignore[attr-defined]
    return f"{_name(row)} {row.precision} {row.correction} {row.paired_difference:+.0f} {interval}"  # type: ignore[attr-defined]
