"""What each subcommand of `quarl` does: a thin cover over catalog, plan, runner, report, deploy and doctor."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap

from quarl_lib.suite import catalog

SILENCE_S = 1800.0  # how long a run may say nothing
OK, NOT_ALL_OK, REFUSED, INTERRUPTED = 0, 1, 2, 130


def list_studies(options: argparse.Namespace) -> int:
    """Print every study with its question; a notebook that cannot be read is named, and the others stay."""
    studies = catalog.some_studies(catalog.find_project())
    code = OK
    for study in studies.values():
        try:
            print(f"{study.name:<{max(map(len, studies))}}  {study.question}")
        except ValueError as error:
            print(f"quarl: {error}", file=sys.stderr)
            code = NOT_ALL_OK
    return code


def init(options: argparse.Namespace) -> int:
    """Lay a workbook out: notebooks, parameters, tested versions, a place for outputs."""
    from quarl_lib.suite import workbook

    for path in workbook.lay_out(options.directory):
        print(path)
    return OK


def describe(options: argparse.Namespace) -> int:
    """Print what a study asks and every parameter that it takes."""
    (study,) = catalog.choose(catalog.find_project(), options.study)
    for paragraph in study.introduction:
        print(textwrap.fill(paragraph.lstrip("# "), 100) + "\n")
    for parameter in study.parameters.values():
        print(f"{parameter.name}: {parameter.type} = {parameter.default!r}")
        if parameter.help:
            print(textwrap.indent(textwrap.fill(parameter.help, 96), "    "))
    return OK


def run(options: argparse.Namespace) -> int:
    """Plan the runs, then run them; 0 only if all are ok."""
    from quarl_lib.suite import plan

    project = catalog.find_project()
    tasks = plan.make(
        project, options.study, options.preset, pairs=options.pairs, files=options.files,
        output=options.output, suite=options.name, grid=options.grid,
    )  # fmt: skip
    if options.dry_run:
        for task in tasks:
            print(f"{task.study}  {task.directory}")
            for name, value in task.parameters.items():
                print(f"  {name} = {value!r}" + ("  (changed)" if name in task.changed else ""))
        return OK
    from quarl_lib.reports import index
    from quarl_lib.suite import runner
    from quarl_lib.suite.display import Display

    silence = options.silence
    if silence is None:
        silence = 0.0 if options.preset == "paper" else SILENCE_S
    how = runner.Options(
        jobs=options.jobs, force=options.force, retry_failed=options.retry_failed,
        timeout_s=options.timeout, cell_timeout_s=options.cell_timeout,
        silence_s=silence or None, cluster=options.cluster,
    )  # fmt: skip
    records = runner.run(tasks, how, Display(tasks), index.add)
    found = sorted({record["state"] for record in records})
    page = tasks[0].directory.parents[1] / "index.html"
    if page.exists():
        print(f"\n{page}")
    if "interrupted" in found:
        return INTERRUPTED
    return OK if found == ["ok"] else NOT_ALL_OK


def estimate(options: argparse.Namespace) -> int:
    """Print how many core hours studies take under a preset, and what several machines make of them."""
    import importlib

    from quarl_lib.reports.explore.finished import FinishedRun
    from quarl_lib.studies.common import estimate as model
    from quarl_lib.suite import plan, states
    from quarl_lib.text_table import text_table

    project = catalog.find_project()
    source, rows, estimates, cpus = options.source or project / "outputs" / "laptop", [], [], set()
    if options.source and not source.is_dir():
        raise ValueError(f"--from {source}: there is no such folder; give a suite's, such as outputs/laptop")
    for task in plan.make(project, options.study, options.preset, pairs=options.pairs):
        package = f"quarl_lib.studies.{task.study}"
        try:
            work = importlib.import_module(f"{package}.work")
        except ModuleNotFoundError as error:
            if error.name not in (package, f"{package}.work"):
                raise
            rows.append({"study": task.study, "note": f"no {package}.work says what it has to do"})
            continue
        found = (path.parent for path in source.glob(f"{task.study}/*/run.json"))
        ok = [one for one in found if states.read(one).get("state") == "ok"]
        newest = max(ok, key=lambda one: states.read(one).get("started", 0.0), default=None)
        run = FinishedRun(newest) if newest else None
        account = work.account(importlib.import_module(package).Config(**task.parameters), run)
        estimates.append(model.estimate(account, options.nodes, options.cores))
        rows.append(model.row(task.study, estimates[-1], options.nodes, account))
        cpus |= {str(run.record.get("cpu", "")) for run in [run] if run}
    if len(estimates) > 1:
        rows.append(model.row("all", model.total(estimates), options.nodes))
    measured = f"units of work as in {source} on {', '.join(sorted(cpus))}" if cpus else f"no finished run in {source}"
    print(f"Modelled: preset {options.preset}; hours on nodes of {options.cores} cores; {measured}\n")
    print(text_table(rows, model.columns(options.nodes)))
    return OK


def report(options: argparse.Namespace) -> int:
    """Write the report of one run, or every report and the index of a suite."""
    from quarl_lib.reports import index, report

    for path in index.rebuild(options.directory, report.build):
        print(path)
    if options.latex:
        from quarl_lib.reports import latex

        for path in latex.build(options.directory):
            print(path)
    return OK


def compare(options: argparse.Namespace) -> int:
    """Write a page that lays runs or suites side by side."""
    from quarl_lib.reports import comparison

    print(comparison.build(options.directories, options.output, catalog.find_project() / "outputs"))
    return OK


def agents(options: argparse.Namespace) -> int:
    """Print a table with a row per agent, refused ones with the reason; 0 if one at least can be played."""
    import json

    from quarl_lib.sb3.describe import SHORT, describe_agents, in_short

    rows = describe_agents(options.directory, tuple(options.import_module), options.run_pickles)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        from quarl_lib.text_table import text_table

        short, engines = in_short(rows)
        print(text_table(short, SHORT))
        for line in engines:
            print(textwrap.fill(line, shutil.get_terminal_size().columns, subsequent_indent="    "))
    return OK if any(row["refused"] is None for row in rows) else NOT_ALL_OK


def recommend(options: argparse.Namespace) -> int:
    """Print per agent the cheapest precision that keeps its return; 0 if one agent at least could be measured."""
    import json

    from quarl_lib.studies.ptq_study.recommend import line, recommend
    from quarl_lib.suite import states

    found = (options.runs or catalog.find_project() / "outputs").glob("*/ptq_study/*/run.json")
    records = {path.parent: states.read(path.parent) for path in found}
    runs = [run for run, record in records.items() if record.get("state") == "ok"]
    runs.sort(key=lambda run: records[run].get("started", 0.0), reverse=True)
    rows = recommend(options.directory, options.retain, options.episodes, options.import_module, runs)
    print(json.dumps(rows, indent=1) if options.json else "\n".join(map(line, rows)))
    return OK if any(row["refused"] is None for row in rows) else NOT_ALL_OK


def export(options: argparse.Namespace) -> int:
    """Write an agent's policy and its card, and say what was measured."""
    from quarl_lib.deploy import describe
    from quarl_lib.deploy.export import export

    card = export(
        options.agent, options.to, options.output, options.precision,
        env_id=options.env_id, vec_normalize=options.vec_normalize,
    )  # fmt: skip
    print(f"{options.output}\n{options.output}.json\n{describe.parity(card)}\n{describe.times(card)}")
    return OK


def bench(options: argparse.Namespace) -> int:
    """Print what an action costs."""
    from quarl_lib.deploy import bench, describe

    table = bench.bench(options.agent, rounds=options.rounds, env_id=options.env_id)
    print(describe.bench_table(table))
    return OK


def profile(options: argparse.Namespace) -> int:
    """Measure what the stages cost and write them as YAML, the authors' recipe too where Reverb is installed."""
    import platform
    from importlib.util import find_spec

    import yaml

    from quarl_lib.actorq.bench import profile
    from quarl_lib.actorq.config import Config
    from quarl_lib.files import write_text

    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", options.hidden):
        raise ValueError(f"--hidden {options.hidden!r}: write layer sizes such as 2048x2048x2048")
    tasks = options.tasks or ["dm_control:cartpole:balance", "gym:CartPole-v0"]
    learner = Config(task=tasks[0], algorithm=profile.algorithm_of(tasks[0]), batch_size=options.batch_size)
    table = profile.measure(
        options.machine or platform.node(), tasks, tuple(map(int, options.hidden.split("x"))),
        options.precisions or ["fp32", "int8", "int4"], learner,
        designs=profile.DESIGNS if find_spec("reverb") else ("packed",),
        progress=lambda done, total, what: print(f"{done} of {total}: {what}", file=sys.stderr),
    )  # fmt: skip
    write_text(options.output, yaml.safe_dump(table, sort_keys=False, default_flow_style=None, width=120))
    print(options.output)
    return OK


def doctor(options: argparse.Namespace) -> int:
    """Print what this machine can do; 0 if the studies can run."""
    from quarl_lib import doctor

    return doctor.show(as_json=options.json)
