"""A suite's front page, "the paper and us": every table and figure of the paper, our numbers beside it."""

from __future__ import annotations

import csv
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl_lib.files import write_text
from quarl_lib.reports import markup
from quarl_lib.reports.report import render


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper, the studies that answer it, and the difference that always stands."""

    name: str
    what: str
    studies: tuple[str, ...] = ()
    differs: str = ""


ITEMS = (
    Item("Table 1", "ActorQ beside other work on distributed training", (),
         "Compares properties of published systems; there is nothing to measure."),
    Item("Table 2", "Post-training quantization: return at fp32, fp16, int8 and KL divergence", ("ptq_study",),
         "The paper's KL is estimated from a density of the weights, ours is exact between action distributions."),
    Item("Table 3", "The tasks of ActorQ: algorithm, actor steps, pull period", ("actorq_training",),
         "The preset “paper” takes the table as it stands; smaller presets take fewer tasks and steps."),
    Item("Table 4", "Time to convergence, speedup and CO2 of int8 actors", ("actorq_training", "training_at_scale"),
         "The paper trained on a GPU with many actors, and its time and carbon columns cannot cover one interval. Ours "
         "is real time on this machine, and its setting in virtual time: the column clock says which."),
    Item("Figure 1", "Where the time of training goes", ("runtime_breakdown",)),
    Item("Figure 2", "The design of ActorQ", ("actorq_training",),
         "A drawing; the program of the study is built the same way, with weights packed once at the learner."),
    Item("Figure 3", "Action distributions of fp32 and int8 policies; appendix C", ("action_distributions",),
         "Ours counts actions at the bounds in histograms and shows the differences themselves."),
    Item("Figure 4", "Return over time, dm_control", ("actorq_training",)),
    Item("Figure 5", "Return over actor steps", ("actorq_training",)),
    Item("Figure 6", "Return over time and over actor steps, gym", ("actorq_training",)),
    Item("Figure 7", "How often actors pull weights", ("communication_ablation",)),
    Item("Figure 8", "What quantized communication and quantized computation each gain", ("communication_ablation",)),
    Item("Figure 9", "Seconds of an actor by component", ("runtime_breakdown", "inference_engines"),
         "The paper's bars were read off the figure, two digits at best."),
    Item("Figure 10", "Quantization-aware training over bits; appendix A", ("qat_bit_sweep",)),
    Item("Figure 11", "Training time over the number of actors; appendix B", ("actor_scaling",)),
)  # fmt: skip
BEYOND = (
    Item("Stable-Baselines3", "Quantized actors inside the training that one has", ("quantized_rollouts",),
         "The paper says that ActorQ does not depend on the framework, and shows it in one."),
)  # fmt: skip
STUDIES = frozenset(study for item in (*ITEMS, *BEYOND) for study in item.studies)
PICTURES = 2


def build(suite: Path, runs: Sequence[dict[str, Any]]) -> str | None:
    """Write `paper.html` of a suite from the index's newest runs; returns its name, or None if no study answers."""
    by_study = {run["study"]: run for run in runs if run["study"] in STUDIES}
    if not by_study:
        return None
    parts = [_part(item, suite, by_study) for item in ITEMS]
    answered = sum(any(answer["state"] == "ok" for answer in part["answers"]) for part in parts)
    beyond = [_part(item, suite, by_study) for item in BEYOND]
    page = render("paper.html.j2", suite=suite.name, parts=parts, beyond=beyond, answered=answered, count=len(ITEMS))
    write_text(suite / "paper.html", page)
    return "paper.html"


def _part(item: Item, suite: Path, by_study: dict[str, dict[str, Any]]) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    for study in item.studies:
        run = by_study.get(study)
        if run is None:
            answers.append({"study": study, "state": "not run", "title": study})
            continue
        folder = Path(run["report"]).parent
        figures = [one for one in run["figures"] if (suite / folder / "figures" / f"{one['name']}.png").exists()]
        wanted = [one for one in figures if item.name in one["alt"]] or figures
        pictures = [{"path": f"{folder}/figures/{one['name']}.png", "alt": one["alt"]} for one in wanted[:PICTURES]]
        table = _table(suite / folder / "beside_paper.csv", item.name, f"{folder}/beside_paper.csv")
        answers.append({**run, "pictures": pictures, "table": table})
    return {"item": item, "id": markup.slug(item.name), "answers": answers}


def _table(path: Path, item: str, link: str) -> Any:
    """Return a study's side-by-side table as HTML, only the rows on this item where it tells them apart."""
    if not path.is_file():
        return ""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and "item" in rows[0]:
        rows = [row for row in rows if row["item"] in (item, "")]
    if not rows:
        return ""
    names = [name for name in rows[0] if name != "item"]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_short(row[name]))}</td>" for name in names) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return markup.safe(markup.in_boxes(table, f"{item}: the paper and us", link))


def _short(text: str | None) -> str:
    """Return a number as a reader wants it, other words as they are."""
    if not text or text.lower() == "nan":
        return "–"
    try:
        number = float(text)
    except ValueError:
        return text
    return f"{number:.4g}" if "." in text or "e" in text.lower() else text
