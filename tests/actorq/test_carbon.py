"""The meter against work of known CPU time in a child process, and against the model's own arithmetic."""

# mypy: disable-error-code="operator"
from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pandas as pd
import pytest

from quarl_lib.actorq import carbon


def burn(cpu_seconds: float) -> None:
    end = time.process_time() + cpu_seconds
    while time.process_time() < end:
        pass


def test_model_by_hand():
    assert carbon.modelled_kwh(cpu_seconds=3600.0, watts_per_core=50.0) == pytest.approx(0.05)


@pytest.mark.parametrize("name", ["cpu_watts", "ram_watts", "carbon_grams_per_kwh"])
def test_bad_values_are_named(tmp_path, name):
    good = {"cpu_watts": 100.0, "ram_watts": 10.0, "carbon_grams_per_kwh": 400.0}
    with pytest.raises(ValueError, match=f"{name}=-1"):
        carbon.Meter(tmp_path / "emissions.csv", **{**good, name: -1.0})


def test_meters_children_and_writes_one_file(tmp_path):
    meter = carbon.Meter(tmp_path / "emissions.csv", cpu_watts=100.0, ram_watts=10.0, carbon_grams_per_kwh=400.0)
    meter.start()
    before = meter.reading()
    if not before["cpu_energy_kwh"]:
        assert before["energy_source"] == "not measured", "a 0 at the beginning is no figure"
    if not Path("/dev/nvidia0").exists():
        assert before["gpu_source"] == "no GPU"
    child = multiprocessing.get_context("fork").Process(target=burn, args=(2.5,))
    child.start()
    time.sleep(0.3)  # a process counts from the first look at it on
    meter.reading()
    while child.is_alive():
        after = meter.reading()
        child.join(0.1)
    last = meter.stop()
    assert last["energy_kwh"] >= after["energy_kwh"] > before["energy_kwh"]
    assert last["emissions_kg"] == pytest.approx(0.4 * last["energy_kwh"])
    assert last["ram_energy_kwh"] == pytest.approx(10.0 * last["metered_s"] / 3.6e6, rel=0.2)
    if last["cpu_source"] == "modelled":
        booked = (last["cpu_energy_kwh"] - before["cpu_energy_kwh"]) / carbon.modelled_kwh(1.0, meter.watts_per_core)
        assert 1.5 < booked < 4.0  # CPU seconds: the child's 2.5, less its first moments, and our own few
    row = pd.read_csv(tmp_path / "emissions.csv").iloc[0]
    assert row.energy_consumed == pytest.approx(last["energy_kwh"], rel=0.05)
