"""The sentences and small tables of the engines' report, made from its summary."""

from __future__ import annotations

import warnings

import pandas as pd

from quarl_lib.inference import PRECISIONS, make_engine
from quarl_lib.inference.choice import choices
from quarl_lib.studies.common.intervals import brackets

SMALL_ERROR = 0.02
# Figure 9 of the paper, seconds on one actor in its computation-heavy and communication-heavy setting.
PAPER_STEP_S = {"computation heavy": (10.7, 5.4), "communication heavy": (10.4, 6.5)}
PAPER_LOAD_S = {"computation heavy": (0.02, 0.2), "communication heavy": (0.3, 1.9)}


def engines_here() -> pd.DataFrame:
    """Return what `backend="auto"` takes on this machine per kind of policy and precision, and why."""
    return pd.DataFrame(choices())


def rows_of(
    summary: pd.DataFrame, policy: str, backend: str = "", precision: str = "", regime: str = "hot", batch: int = 1
) -> pd.DataFrame:
    """Return the rows of a policy, regime and batch, of one backend and precision where given."""
    rows = summary[(summary.policy == policy) & (summary.regime == regime) & (summary.batch == batch)]
    rows = rows[rows.backend == backend] if backend else rows
    return rows[rows.precision == precision] if precision else rows


def verdict(summary: pd.DataFrame) -> str:
    """Say per policy which engine is fastest hot, over torch fp32 and over the best fp32 of this run."""
    lines = []
    for policy in dict.fromkeys(summary.policy):
        rows = rows_of(summary, policy)
        accurate = rows[rows.mean_relative_error <= SMALL_ERROR]
        best_fp32 = rows[rows.precision == "fp32"].nlargest(1, "ratio_to_torch_fp32").iloc[0]
        first = accurate.nlargest(1, "ratio_to_torch_fp32").iloc[0]
        line = (
            f"- **{policy}**: within {SMALL_ERROR:.0%} of fp32's action, {_name(first)} is fastest: "
            f"{_times(first)}, {first.ratio_to_best_fp32:.3g} times the best fp32 ({_name(best_fp32)})"
        )
        quickest = rows.nlargest(1, "ratio_to_torch_fp32").iloc[0]
        if quickest.name != first.name:
            line += f"; at {quickest.mean_relative_error:.0%} error {_name(quickest)} reaches {_times(quickest)}"
        lines.append(line + ".")
    return "\n".join(lines)


def ratios(summary: pd.DataFrame, regime: str = "hot") -> pd.DataFrame:
    """Return the ratio to torch fp32, a row per policy and engine and a column per precision."""
    rows = summary[(summary.regime == regime) & (summary.batch == 1)]
    wide = rows.pivot(index=["policy", "backend"], columns="precision", values="ratio_to_torch_fp32")
    columns = [precision for precision in PRECISIONS if precision in wide.columns]
    return wide.loc[list(dict.fromkeys(rows.policy)), columns].reset_index()


def cold_verdict(summary: pd.DataFrame, precisions: tuple[str, ...] = ("int8", "int4")) -> str:
    """Say what the native engine keeps of its ratio when other data has been through the caches."""
    parts = []
    for policy in dict.fromkeys(summary.policy):
        for precision in precisions:
            hot = rows_of(summary, policy, "native", precision)
            cold = rows_of(summary, policy, "native", precision, "cold")
            if len(hot) and len(cold):
                ratios = f"{hot.iloc[0].ratio_to_torch_fp32:.3g} hot, {cold.iloc[0].ratio_to_torch_fp32:.3g} cold"
                parts.append(f"{policy} {precision}: {ratios}")
    if not parts:
        return "The native engine did not run here; see the list of engines above."
    return "Native over torch fp32 in the same regime: " + "; ".join(parts) + "."


def limit_verdict(summary: pd.DataFrame) -> str:
    """Say how far the fastest int8 engine is from the time that reading its weights takes."""
    parts = []
    for policy in dict.fromkeys(summary.policy):
        rows = rows_of(summary, policy, precision="int8")
        if len(rows):
            row = rows.nlargest(1, "ratio_to_torch_fp32").iloc[0]
            parts.append(f"{policy} {row.over_limit:.2g} times ({row.backend})")
    return "Fastest int8 engine over the time to read every weight once, hot: " + "; ".join(parts) + "."


def batch_verdict(summary: pd.DataFrame) -> str:
    """Say per policy up to which batch quantization pays against the best fp32 engine at the same batch."""
    lines = []
    for policy, sizes in batched(summary).items():
        gains = {}
        for batch in sizes:
            rows = rows_of(summary, policy, batch=batch)
            fp32 = rows[rows.precision == "fp32"].nsmallest(1, "us_median").iloc[0]
            accurate = rows[(rows.mean_relative_error <= SMALL_ERROR) & rows.precision.str.startswith("int")]
            if len(accurate):
                first = accurate.nsmallest(1, "us_median").iloc[0]
                text = f"{first.ratio_to_best_fp32:.3g} x ({_name(first)} over {_name(fp32)}) at {batch}"
                gains[batch] = (first.ratio_to_best_fp32, text)
        if not gains:
            continue
        pays = [batch for batch, (gain, _) in gains.items() if gain > 1]
        ends = "; ".join(dict.fromkeys(gains[batch][1] for batch in (min(gains), max(gains))))
        if len(pays) == len(gains):
            lines.append(f"- **{policy}**: quantization pays up to the largest batch, {max(pays)}: {ends}.")
        elif pays:
            first_loss = min(batch for batch in gains if batch not in pays)
            lines.append(f"- **{policy}**: quantization pays below a batch of {first_loss}: {ends}.")
        else:
            lines.append(f"- **{policy}**: quantization does not pay at any batch: {ends}.")
    if not lines:
        return "No batches were measured, or no integer engine ran: see the list of engines above."
    head = f"Against the best fp32 engine at the same batch, with actions within {SMALL_ERROR:.0%} of fp32's:"
    return "\n".join([head, "", *lines])


def roofline_verdict(summary: pd.DataFrame) -> str:
    """Say how far native int8 is from the roofline at the largest batch."""
    parts = []
    for policy, sizes in batched(summary).items():
        rows = rows_of(summary, policy, "native", "int8", batch=max(sizes))
        if len(rows):
            row = rows.iloc[0]
            parts.append(f"{policy} {row.over_limit:.3g} times ({row.us_median:.3g} µs, limit {row.limit_us:.3g})")
    if not parts:
        return "The native engine ran no batches here."
    return "Native int8 over the roofline's time at the largest batch: " + "; ".join(parts) + "."


def batched(summary: pd.DataFrame) -> dict[str, list[int]]:
    """Return the batches, ascending, of every policy that was measured at more than one."""
    found = {policy: sorted(set(rows.batch)) for policy, rows in summary.groupby("policy", sort=False)}
    return {policy: sizes for policy, sizes in found.items() if len(sizes) > 1}


def error_verdict(summary: pd.DataFrame) -> str:
    """Say which precisions keep the action within the small error on every policy, and the worst of the others."""
    cells = summary.groupby(["precision", "backend"], sort=False).mean_relative_error.max().sort_values()
    worst = {precision: errors for precision, errors in cells.groupby(level="precision", sort=False)}
    close = [precision for precision, errors in worst.items() if errors.iloc[-1] <= SMALL_ERROR]
    far = [
        f"{precision} " + ", ".join(f"{error:.1%} ({backend})" for (_, backend), error in errors.items())
        for precision, errors in worst.items()
        if precision not in close
    ]
    sentence = f"On every policy and engine within {SMALL_ERROR:.0%}: {', '.join(close) or 'none'}."
    return sentence + (f" The others at worst: {'; '.join(far)}." if far else "")


def update_verdict(summary: pd.DataFrame, policy: str) -> str:
    """Say what new weights of a policy cost on the native path beside PyTorch's, learner and actor together."""
    parts = []
    for backend, precision in (("native", "int8"), ("onnxruntime", "int8"), ("torch", "int8"), ("torch", "fp32")):
        rows = rows_of(summary, policy, backend, precision)
        if len(rows):
            row = rows.iloc[0]
            parts.append(f"{backend} {precision} {row.update_ms:.3g} ms for {row.payload_bytes / 1e6:.3g} MB")
    in_place = rows_of(summary, policy, "native", "int8").load_in_place_ms
    ending = f" In place, from shared memory, the native load takes {in_place.iloc[0]:.2g} ms." if len(in_place) else ""
    return f"New weights of {policy}, pack and load together: {'; '.join(parts)}.{ending}"


def automatic(summary: pd.DataFrame) -> pd.DataFrame:
    """Return what `backend="auto"` takes beside the engine that measured fastest, hot, at batch 1 and the largest."""
    from quarl_lib.inference.example_policies import example_policy  # torch, which figures and sentences do without

    table = []
    for policy in dict.fromkeys(summary.policy):
        spec, _ = example_policy(policy, 0)
        sizes = sorted(set(summary[summary.policy == policy].batch))
        for batch in dict.fromkeys((sizes[0], sizes[-1])):
            for precision in dict.fromkeys(rows_of(summary, policy, batch=batch).precision):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    engine = make_engine(spec, precision, batch=batch)
                rows = rows_of(summary, policy, precision=precision, batch=batch)
                fastest = rows.nlargest(1, "ratio_to_torch_fp32").iloc[0]
                own = rows[rows.backend == engine.backend].ratio_to_torch_fp32
                table.append(
                    {
                        "policy": policy,
                        "precision": precision,
                        "batch": batch,
                        "auto": engine.backend,
                        "fastest": fastest.backend,
                        "auto_over_fastest": own.iloc[0] / fastest.ratio_to_torch_fp32 if len(own) else float("nan"),
                        "reason": engine.reason,
                    }
                )
    return pd.DataFrame(table)


def beside_paper(summary: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Return what int8 gains in inference and costs in loading: Figure 9 of the paper beside torch.ao and native."""
    differs = "paper: whole actor step, its CPU and policy; here: one call of " + policy
    rows = []
    for backend in ("torch", "native"):
        int8 = rows_of(summary, policy, backend, "int8")
        if int8.empty:
            continue
        cell = int8.iloc[0]
        for setting, (step_fp32, step_int8) in PAPER_STEP_S.items():
            load_fp32, load_int8 = PAPER_LOAD_S[setting]
            gain = (cell.ratio_to_torch_fp32, cell.ratio_ci_low, cell.ratio_ci_high)
            loading = (cell.load_ratio, cell.load_ratio_low, cell.load_ratio_high)
            what = f"{setting}, int8 by {backend}"
            rows.append((f"{what}: inference speed over fp32", step_fp32 / step_int8, *gain))
            rows.append((f"{what}: time to load weights over fp32's", load_int8 / load_fp32, *loading))
    table = pd.DataFrame(rows, columns=["what", "paper", "ours", "ci_low", "ci_high"])
    table.insert(0, "item", "Figure 9")
    return table.assign(setting=differs)


def key_figure(summary: pd.DataFrame) -> str:
    """Return the run's one line: the first policy's fastest int8 engine over torch fp32 and over the best fp32."""
    policy = summary.policy.iloc[0]
    row = rows_of(summary, policy, precision="int8").nlargest(1, "ratio_to_torch_fp32").iloc[0]
    return (
        f"On one core, the policy {policy} acts in {_times(row)} with the engine {_name(row)}, and at "
        f"{row.ratio_to_best_fp32:.3g} x the speed of the best fp32 engine."
    )


def _name(row: pd.Series) -> str:
    return f"{row.backend} {row.precision}"


def _times(row: pd.Series) -> str:
    spread = brackets(row.ratio_ci_low, row.ratio_ci_high, digits=".3g")
    return f"{row.us_median:.3g} µs, {row.ratio_to_torch_fp32:.3g} x the speed of torch fp32 {spread}"
