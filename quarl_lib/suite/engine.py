"""Papermill's engine with one difference: what a cell prints is capped in the notebook, and kept longer in the log."""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.log import logger

from quarl_lib.suite import streams

NAME = "quarl"


class NotebookClient(PapermillNotebookClient):
    """Executes a notebook; holds the head of each stream in it, the tail aside until the cell is over."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kept_log = streams.Log(self.log.info)
        self.caps: dict[str, streams.Cap] = {}

    def execute_cell(self, cell: NotebookNode, cell_index: int, **options: Any) -> NotebookNode:  # type: ignore[override]
        """Execute a cell, then put the last part of each stream behind its first."""
        self.caps = {}
        try:
            return super().execute_cell(cell, cell_index, **options)
        finally:
            outputs = self.nb.cells[cell_index].get("outputs", [])
            for name, cap in self.caps.items():
                places = [index for index, one in enumerate(outputs) if one.get("name") == name]
                if cap.rest() and places:
                    outputs[places[-1]]["text"] += cap.rest()

    def clear_output(self, outs: list[NotebookNode], msg: dict[str, Any], cell_index: int) -> None:
        """Begin anew with what the cell itself takes away."""
        super().clear_output(outs, msg, cell_index)
        self.caps = {}

    def output(self, outs: list[NotebookNode], msg: dict[str, Any], *rest: Any) -> NotebookNode | None:
        """Handle an output: a stream's text goes to the log as it came, and as far as there is room to the notebook."""
        if msg["msg_type"] != "stream":
            return super().output(outs, msg, *rest)
        content = msg["content"]
        self.kept_log.add(content["text"])
        cap = self.caps.setdefault(content["name"], streams.Cap())
        room = cap.take(content["text"])
        return super().output(outs, {**msg, "content": {**content, "text": room}}, *rest) if room else None

    def log_output_message(self, output: NotebookNode) -> None:
        """Log what is no stream; streams are in the log already."""
        if output.output_type != "stream":
            super().log_output_message(output)


class NotebookEngine(NBClientEngine):
    """What papermill calls; hands this project's options to the client."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:  # type: ignore[override]
        """Execute the notebook."""
        chosen = {name: options[name] for name in ("kernel_manager_class", "extra_arguments", "on_cell_start")}
        return NotebookClient(
            nb_man, kernel_name=kernel_name, startup_timeout=60, log=logger, log_output=True, **chosen
        ).execute()


papermill_engines.register(NAME, NotebookEngine)
