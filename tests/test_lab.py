"""JupyterLab in a browser, as `make lab` opens it: Run All, the figure, another parameter, an interrupt."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import psutil
import pytest
from browser import Browser, executable
from conftest import add_study
from explored import write_run

from quarl_lib.results import PROJECT
from quarl_lib.suite import processes

NOTEBOOK = "[...window.jupyterapp.shell.widgets('main')].find(one => one.context?.path.endsWith('.ipynb'))"
RUN_ALL = "window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => 0, () => 0); 0"
IDLE = f"{NOTEBOOK}.sessionContext.session.kernel.status === 'idle'"


@pytest.fixture
def lab(project, tmp_path):
    """Start JupyterLab in the project with this interpreter's kernel; yields its address."""
    executable()
    environment = {
        **os.environ, "PYTHONPATH": f"{project}{os.pathsep}{PROJECT}", "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"), "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "QUARL_RUN_DIR": str(tmp_path / "run"),
    }  # fmt: skip
    call = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--notebook-dir=.",
            "--ServerApp.port=0", "--ServerApp.token=", "--ServerApp.password=",
            "--LabApp.expose_app_in_browser=True"]  # fmt: skip
    with (tmp_path / "lab.log").open("wb") as log:
        server = subprocess.Popen(call, cwd=project, env=environment, stdout=log, stderr=log)
    try:
        found: list[str] = []

        def up() -> bool:
            texts = (path.read_text() for path in (tmp_path / "runtime").glob("jpserver-*.json"))
            found[:] = [text for text in texts if text.rstrip().endswith("}")]  # the server may still be writing it
            return bool(found) or server.poll() is not None

        assert processes.wait_until(up, 180.0), (tmp_path / "lab.log").read_text()
        assert server.poll() is None, (tmp_path / "lab.log").read_text()
        yield json.loads(found[0])["url"]
    finally:
        children = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
        server.terminate()
        server.wait(20)
        for child in psutil.wait_procs(children, timeout=5)[1]:
            child.kill()


def open_notebook(browser: Browser, address: str, name: str) -> None:
    browser.open(f"{address}lab/tree/notebooks/{name}?reset", width=1400, height=1000)
    browser.wait("window.jupyterapp !== undefined")
    browser.ask("window.jupyterapp.restored.then(() => 0)")
    browser.wait(f"{NOTEBOOK}?.context?.isReady === true && {NOTEBOOK}.sessionContext.session?.kernel != null")
    browser.ask(f"window.jupyterapp.shell.activateById({NOTEBOOK}.id)")
    browser.wait(IDLE)


def test_run_all_shows_the_figure_and_runs_again_with_another_parameter(lab, project, tmp_path):
    with Browser() as browser:
        open_notebook(browser, lab, "01_dice.ipynb")
        assert browser.ask(f"{NOTEBOOK}.sessionContext.session.kernel.name") == "python3"
        browser.ask(RUN_ALL)
        browser.wait("document.querySelector('.jp-RenderedImage img')?.naturalWidth > 100", 90)
        browser.wait(f"{NOTEBOOK}.content.widgets.at(-1).model.executionState !== 'running' && {IDLE}")
        outputs = f"JSON.stringify({NOTEBOOK}.model.sharedModel.toJSON().cells.map(one => one.outputs ?? []))"
        first = browser.ask(outputs)
        assert "dice 2/2" in first, "progress stays readable afterwards"
        assert "ename" not in first
        parameters = "sides: list[int] = [20]\\nrolls: int = 50\\nbias: float = 0.0\\nseed: int = 1"
        cell = f"{NOTEBOOK}.content.widgets.find(one => one.model.sharedModel.getSource().startsWith('sides'))"
        browser.ask(f"{cell}.model.sharedModel.setSource('{parameters}'); 0")
        browser.ask(RUN_ALL)
        browser.wait(f"{outputs}.includes('<td>20</td>') && {IDLE}", 90)
        assert processes.wait_until(lambda: (tmp_path / "run" / "finished.json").exists(), 20)
        assert "20," in (tmp_path / "run" / "summary.csv").read_text()


@pytest.mark.slow
def test_interrupted_kernel_stays_usable_and_leaves_no_process(lab, project):
    add_study(project, "waits", "import subprocess\nsubprocess.run(['sleep', '986'])")
    with Browser() as browser:
        open_notebook(browser, lab, "02_waits.ipynb")

        def sleeping() -> list[psutil.Process]:
            return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "986"]]

        browser.ask(RUN_ALL)
        assert processes.wait_until(lambda: bool(sleeping()), 60)
        browser.ask(f"{NOTEBOOK}.sessionContext.session.kernel.interrupt().then(() => 0)")
        browser.wait(IDLE)
        assert processes.wait_until(lambda: not sleeping(), 10)
        kernel = f"{NOTEBOOK}.sessionContext.session.kernel.requestExecute({{code: '6 * 7'}}).done"
        assert browser.ask(f"{kernel}.then(reply => reply.content.status)") == "ok"


SHOWN = "document.querySelector('.jp-OutputArea img[alt*=\\'one panel per agent\\']')?.src ?? ''"


def choose(browser: Browser, label: str, *options: str) -> None:
    """Choose options of the drop-down or list with a label, as a hand would."""
    found = "[...document.querySelectorAll('.widget-inline-hbox')]"
    found += f".find(one => one.querySelector('label')?.textContent === '{label}')"
    wanted = json.dumps(options)
    text = "one.text.replaceAll('\\u00a0', ' ')"  # ipywidgets shows a space as one that does not break
    there = f"[...({found}?.querySelectorAll('option') ?? [])].map(one => {text})"
    browser.wait(f"{wanted}.every(one => {there}.includes(one))", 120)
    browser.ask(
        f"{{ const list = {found}.querySelector('select');"
        f"for (const one of list.options) one.selected = {wanted}.includes({text});"
        "list.dispatchEvent(new Event('change', {bubbles: true})); }"
    )


def test_explorer_chooses_filters_and_draws_again(lab, project):
    shutil.copy(PROJECT / "notebooks" / "00_explore.ipynb", project / "notebooks")
    write_run(project / "outputs" / "smoke")
    write_run(project / "outputs" / "laptop", "laptop-1", shift=7.0)
    with Browser() as browser:
        open_notebook(browser, lab, "00_explore.ipynb")
        browser.ask(RUN_ALL)
        choose(browser, "suite", "smoke")
        choose(browser, "figure", "return over bits")
        browser.wait(f"({SHOWN}).length > 1000", 90)
        everything = browser.ask(SHOWN)
        choose(browser, "agent", "ppo/Pendulum-v1")
        browser.wait(f"({SHOWN}) !== '' && ({SHOWN}) !== {json.dumps(everything)}")
        browser.wait("document.body.innerText.includes('9 of 18 rows')")
        choose(browser, "precision", "fp32", "int8")
        browser.wait("document.body.innerText.includes('6 of 18 rows')")
        choose(browser, "seed", "0")
        browser.wait("document.body.innerText.includes('2 of 18 rows')", 120)
        choose(browser, "beside it", "laptop: laptop-1")
        browser.wait("document.querySelectorAll('.jp-OutputArea img').length === 2", 90)
        tops = browser.ask(
            "[...document.querySelectorAll('.jp-OutputArea img')].map(one => one.getBoundingClientRect().top)"
        )
        assert abs(tops[0] - tops[1]) < 200, "side by side"
        said = browser.ask("document.body.innerText")
        assert "shifted by 0" in said
        assert "shifted by 7" in said
