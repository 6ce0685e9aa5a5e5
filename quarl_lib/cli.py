"""The `quarl` command: its subcommands and their options; what they do is in `commands`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from quarl_lib import commands as acts
from quarl_lib.commands import INTERRUPTED, OK, REFUSED
from quarl_lib.suite import catalog


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = build_parser().parse_args(arguments)
    try:
        return options.act(options)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"quarl: {error}", file=sys.stderr)
        return REFUSED


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every subcommand."""
    parser = argparse.ArgumentParser(prog="quarl", description="Experiments on quantized reinforcement learning.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="the studies, and the question that each answers")
    command.set_defaults(act=acts.list_studies)

    command = commands.add_parser("init", help="lay a workbook out: notebooks, params, a place for outputs")
    command.add_argument("directory", type=Path, metavar="DIR")
    command.set_defaults(act=acts.init)

    command = commands.add_parser("describe", help="a study's parameters: name, type, default, help")
    command.add_argument("study")
    command.set_defaults(act=acts.describe)

    command = commands.add_parser("run", help="run a study, or all of them, and write their reports")
    command.add_argument("study", help="a study's name, several with commas between, or all")
    command.add_argument("--preset", default="laptop", metavar="|".join(catalog.PRESETS), help="default: laptop")
    command.add_argument("-p", dest="pairs", action="append", default=[], metavar="NAME=VALUE", help="set a parameter")
    command.add_argument("-f", dest="files", action="append", default=[], type=Path, metavar="FILE.yaml")
    command.add_argument("--output", type=Path, metavar="DIR", help="default: outputs")
    command.add_argument("--name", metavar="SUITE", help="the folder below the output's; default: the preset")
    command.add_argument("--grid", action="store_true", help="-p a=1,2 makes one run for each value")
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side")
    command.add_argument("--cluster", metavar="ADDRESS", help="independent cells on Ray's nodes: auto or host:port")
    command.add_argument("--timeout", type=seconds, metavar="TIME", help="for each run: 90, 90s, 10m, 2h")
    command.add_argument("--cell-timeout", type=seconds, metavar="TIME", help="for each cell of a notebook")
    command.add_argument("--silence", type=seconds, metavar="TIME", help="without a sign of life; default 30m, paper 0")
    command.add_argument("--force", action="store_true", help="run again what is done already")
    command.add_argument("--retry-failed", action="store_true", help="run only what failed or timed out before")
    command.add_argument("--dry-run", action="store_true", help="show the runs and their parameters, start none")
    command.set_defaults(act=acts.run)

    command = commands.add_parser("estimate", help="how many core hours a preset takes, and what several machines save")
    command.add_argument("study", nargs="?", default="all", help="as for run; default: all")
    command.add_argument("--preset", default="paper", metavar="|".join(catalog.PRESETS), help="default: paper")
    command.add_argument("-p", dest="pairs", action="append", default=[], metavar="NAME=VALUE", help="as for run")
    command.add_argument("--from", dest="source", type=Path, metavar="DIR", help="a finished suite; outputs/laptop")
    command.add_argument("--nodes", type=whole_numbers, default=[1], metavar="N,N", help="numbers of machines; 1")
    command.add_argument("--cores", type=int, default=16, metavar="N", help="of each machine; default: 16")
    command.set_defaults(act=acts.estimate)

    command = commands.add_parser("report", help="write the reports of a run or a suite anew")
    command.add_argument("directory", type=Path, metavar="DIR")
    command.add_argument("--latex", action="store_true", help="each table as <name>.tex beside its CSV, for booktabs")
    command.set_defaults(act=acts.report)

    command = commands.add_parser("compare", help="lay the summaries of runs or suites side by side")
    command.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    command.add_argument("--output", type=Path, metavar="FILE.html", help="default: in outputs/comparisons")
    command.set_defaults(act=acts.compare)

    command = commands.add_parser("agents", help="what each trained agent of a folder is, and what can run it")
    command.add_argument("directory", type=Path, metavar="DIR")
    command.add_argument(
        "--import-module", action="append", default=[], metavar="MODULE", help="registers environments"
    )
    command.add_argument("--run-pickles", action="store_true", help="run the code in archives that you trust")
    command.add_argument("--json", action="store_true")
    command.set_defaults(act=acts.agents)

    command = commands.add_parser("recommend", help="per agent the cheapest precision that keeps its return")
    command.add_argument("directory", type=Path, metavar="DIR")
    command.add_argument("--retain", type=float, default=0.95, metavar="SHARE", help="of fp32's return; default: 0.95")
    command.add_argument("--episodes", type=int, default=30, metavar="N", help="per precision; default: 30")
    command.add_argument(
        "--import-module", action="append", default=[], metavar="MODULE", help="registers environments"
    )
    command.add_argument("--runs", type=Path, metavar="DIR", help="suites whose finished PTQ runs are reused; outputs")
    command.add_argument("--json", action="store_true")
    command.set_defaults(act=acts.recommend)

    command = commands.add_parser("export", help="write an agent's policy as ONNX, C or one file, with its parity")
    command.add_argument("agent", help="an archive, a hub folder, or one in the package, such as ppo/CartPole-v1")
    command.add_argument("--to", required=True, choices=("onnx", "c", "policy"))
    command.add_argument("--precision", default="int8", help="fp32, fp16, int8; int4, int3 and int2 for c and policy")
    command.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE")
    command.add_argument("--env-id", help="where the agent's name does not say it")
    command.add_argument(
        "--vec-normalize", type=Path, metavar="FILE.pkl", help="where it does not lie beside the agent"
    )
    command.set_defaults(act=acts.export)

    command = commands.add_parser("bench", help="microseconds an action of an agent, as it is and on every engine")
    command.add_argument("agent", help="as for export")
    command.add_argument("--rounds", type=int, default=10, help="default: 10")
    command.add_argument("--env-id", help="where the agent's name does not say it")
    command.set_defaults(act=acts.bench)

    command = commands.add_parser("profile", help="what this machine's stages cost: a table for the virtual clock")
    command.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE.yaml")
    command.add_argument("--machine", help="its name in the table; default: the host's")
    command.add_argument("--task", dest="tasks", action="append", metavar="TASK", help="may be repeated")
    command.add_argument("--hidden", default="2048x2048x2048", help="the actors' policy; default: 2048x2048x2048")
    command.add_argument("--precision", dest="precisions", action="append", help="may be repeated; fp32, int8, int4")
    command.add_argument("--batch-size", type=int, default=256, metavar="N", help="the learner's; default: 256")
    command.set_defaults(act=acts.profile)

    command = commands.add_parser("doctor", help="what this machine can do, and what to do where it cannot")
    command.add_argument("--json", action="store_true")
    command.set_defaults(act=acts.doctor)
    return parser


def whole_numbers(text: str) -> list[int]:
    """Read whole numbers of at least 1, with commas between."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: write whole numbers such as 1,4,16")
    return list(map(int, text.split(",")))


def seconds(text: str) -> float:
    """Read a duration such as 90, 90s, 10m or 2h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: write 90, 90s, 10m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


if __name__ == "__main__":
    sys.exit(main())
