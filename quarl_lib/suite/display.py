"""Show a suite at work: one line a run on a terminal, plain time-stamped lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, TextIO

from quarl_lib.suite.plan import Task

MARKS = {"ok": "✓", "failed": "✗", "timeout": "✗", "interrupted": "–", "busy": "…", "running": "▸"}
PLAIN_EVERY_S = 30.0


def duration(seconds: float) -> str:
    """Return a duration as a reader says it: 7 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def spelled(value: object) -> str:
    """Return a parameter's value without Python's quotes: fp32, int8."""
    return ", ".join(map(str, value)) if isinstance(value, list) and value else str(value)


def inside(record: dict[str, Any], now: float) -> str:
    """Return what goes on inside a run: how far, of what, and about how long still."""
    progress, cell = record.get("progress") or {}, record.get("cell") or {}
    if not isinstance(cell, dict) or not cell:
        return "starting"
    if not progress or progress.get("done", 0) >= progress.get("total", 0):
        return f"cell {cell['index'] + 1}: {' '.join(cell.get('source', []))[:60]}"
    return f"{progress['what']} {progress['done']:,} of {progress['total']:,}"


class Display:
    """Hear of every change from the runner and write it where a person looks."""

    def __init__(self, tasks: list[Task], stream: TextIO = sys.stdout) -> None:
        self.stream, self.live = stream, stream.isatty()
        self.width = max([len(self._name(task)) for task in tasks], default=0)
        self.active: dict[str, str] = {}
        self.drawn = 0
        self.said: dict[str, float] = {}
        self.lock = threading.Lock()

    @staticmethod
    def _name(task: Task) -> str:
        readable = task.run_id.rsplit("-", 1)[0]
        return task.study if readable == task.preset else f"{task.study} {readable.removeprefix(task.preset + '_')}"

    def __call__(self, task: Task, record: dict[str, Any]) -> None:
        """Show one change of one run."""
        with self.lock:
            key, state, now = str(task.directory), record["state"], time.time()
            if state == "running":
                elapsed = record["elapsed_s"]
                line = self._line(task, state, f"{duration(elapsed):>9}  {inside(record, now)}")
                if self.live:
                    self.active[key] = line
                    self._redraw()
                elif now - self.said.get(key, 0.0) > PLAIN_EVERY_S:
                    self._plain(line if key in self.said else self._line(task, state, "started"))
                    self.said[key] = now
                return
            self.active.pop(key, None)
            self._final(self._line(task, state, self._end(record)))

    def _end(self, record: dict[str, Any]) -> str:
        if record["state"] == "busy":
            return "another runner has it; waiting"
        if record.get("skipped"):
            said = "done before" if record["state"] == "ok" else record.get("reason") or record["state"]
            return f"{said}: {record.get('key_figure', '')}".rstrip(": ")
        took = f"{duration(record['duration_s']):>9}  " if "duration_s" in record else ""
        if record["state"] == "ok":
            return took + record.get("key_figure", "")
        where = f" (cell {record['cell'] + 1})" if isinstance(record.get("cell"), int) else ""
        return f"{took}{record['state']}{where}: {record.get('reason', '')}"

    def _line(self, task: Task, state: str, text: str) -> str:
        return f"{MARKS.get(state, ' ')} {self._name(task):<{self.width}}  {text}"

    def _plain(self, line: str) -> None:
        self.stream.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        self.stream.flush()

    def _final(self, line: str) -> None:
        if not self.live:
            self._plain(line)
            return
        self._erase()
        self.stream.write(line + "\n")
        self._redraw()

    def _erase(self) -> None:
        if self.drawn:
            self.stream.write(f"\x1b[{self.drawn}F\x1b[J")
        self.drawn = 0

    def _redraw(self) -> None:
        import shutil

        self._erase()
        columns = shutil.get_terminal_size().columns
        for line in self.active.values():
            self.stream.write(line[: columns - 1] + "\n")
        self.drawn = len(self.active)
        self.stream.flush()
