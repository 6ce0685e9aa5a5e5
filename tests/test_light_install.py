"""Everything but Acme's adder and the authors' recipe works without Acme, Reverb, TensorFlow and JAX."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import shown_numbers

from quarl_lib.suite import plan, runner

ROOT = plan.PACKAGE.parent
BLOCKED = ("acme", "reverb", "tensorflow", "jax", "jaxlib")
BLOCK = f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED!r}))\n"
STUDIES = [path.stem.split("_", 1)[1] for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]


def test_parts_import_without_what_reverb_brings():
    code = BLOCK + (
        "from quarl_lib.actorq.config import Config\n"
        "from quarl_lib.actorq.replay import choice, local\n"
        "from quarl_lib.actorq.actor import loop\n"
        "from quarl_lib.actorq.learner import loop\n"
        "from quarl_lib.actorq.bench import throughput_parts\n"
        "assert Config().local_replay\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in sys.argv[1:] and sys.modules[name]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *BLOCKED], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_smoke_preset_of_every_study_without_them(study, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    paths = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    (task,) = plan.make(ROOT, study, "smoke", output=tmp_path / "outputs")
    (record,) = runner.run([task], runner.Options(timeout_s=300))
    assert record["state"] == "ok", record["reason"]
    said = " ".join(shown_numbers.said(task.directory))
    if study in ("communication_ablation", "runtime_breakdown"):
        assert "because Reverb is not installed" in said
    if study == "actorq_training":
        assert "The authors' recipe was left out: it needs Reverb" in said


@pytest.mark.slow
def test_a_venv_made_without_them_trains_actorq(tmp_path):
    """Installs the package alone, in about 2 GB; needs a package index."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = [python, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", "."]
    done = subprocess.run(install, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package index: {done.stderr[-200:]}")
    lists = subprocess.run([python, "-m", "pip", "list"], env=environment, capture_output=True, text=True).stdout
    assert not {"dm-acme", "dm-reverb", "tensorflow-cpu", "jax"} & set(lists.split())
    book, quarl = tmp_path / "book", folder / "bin" / "quarl"
    subprocess.run([quarl, "init", book], env=environment, check=True, cwd=Path("/"))
    call = [quarl, "run", "runtime_breakdown", "--preset", "smoke"]
    done = subprocess.run(call, cwd=book, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
