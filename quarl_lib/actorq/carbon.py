"""Energy and CO2 of a process tree, readable at any moment, each figure with its source.

Counters (RAPL) are read where the machine has them. Elsewhere codecarbon models: CPU seconds of the tree times a fixed
power, and a fixed power of the RAM. A model's absolute figures mean little; ratios between runs on one machine with
the same powers do.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from codecarbon import OfflineEmissionsTracker
from codecarbon.core.cpu import is_rapl_available
from codecarbon.core.gpu import is_gpu_details_available
from codecarbon.core.util import count_cpus
from codecarbon.output_methods.base_output import BaseOutput

KWH_PER_WATT_SECOND = 1 / 3.6e6
NOT_MEASURED = "not measured"  # the run was over before the meter's second look at it


class _Latest(BaseOutput):
    """Keeps what codecarbon last added up."""

    def __init__(self) -> None:
        self.total: Any = None

    def out(self, total: Any, delta: Any) -> None:
        self.total = total


class Meter:
    """Meters the process that makes it and all its children; `start` takes seconds, so start before what is timed.

    Args:
        path: the run's file; `stop` writes codecarbon's totals there as CSV.
        cpu_watts: power of all cores at full load, where there is no counter.
        ram_watts: power of the memory, for as long as the meter runs.
        carbon_grams_per_kwh: grams of CO2 equivalents a kWh.

    Raises:
        ValueError: a power or the intensity is not a finite number of at least 0.
    """

    def __init__(self, path: Path, cpu_watts: float, ram_watts: float, carbon_grams_per_kwh: float) -> None:
        for name, value in (
            ("cpu_watts", cpu_watts), ("ram_watts", ram_watts), ("carbon_grams_per_kwh", carbon_grams_per_kwh)
        ):  # fmt: skip
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value}: give a finite number of at least 0")
        self.path, self.carbon_grams_per_kwh = path, carbon_grams_per_kwh
        self.source = "measured" if is_rapl_available() else "modelled"
        # codecarbon spreads the power over all cores of the machine: what one core's second costs.
        self.watts_per_core = cpu_watts / count_cpus()
        self._latest = _Latest()
        logging.getLogger("codecarbon").setLevel(
            logging.CRITICAL
        )  # its option of that name comes after its first words
        path.parent.mkdir(parents=True, exist_ok=True)
        self._tracker = OfflineEmissionsTracker(
            country_iso_code="USA", tracking_mode="process", measure_power_secs=1, log_level="critical",
            save_to_file=False, output_dir=str(path.parent), output_handlers=[self._latest],
            force_cpu_power=None if self.source == "measured" else cpu_watts, force_ram_power=ram_watts,
            force_carbon_intensity_g_co2e_kwh=carbon_grams_per_kwh, allow_multiple_runs=True,
        )  # fmt: skip

    def start(self) -> None:
        """Begin; the first call in a process takes about three seconds."""
        self._tracker.start()

    def reading(self) -> dict[str, object]:
        """Return the energy since `start`, as a row: kWh apart for CPU, RAM and GPU, and the source of each.

        `energy_source` is that of the sum, "measured" only if every part of it was; `NOT_MEASURED` as long as nothing
        was added up: the 0 there is a beginning and no figure.
        """
        self._tracker.flush()
        total = self._latest.total
        energy = float(total.cpu_energy + total.ram_energy + total.gpu_energy)
        return {
            "cpu_energy_kwh": float(total.cpu_energy),
            "ram_energy_kwh": float(total.ram_energy),
            "gpu_energy_kwh": float(total.gpu_energy),
            "energy_kwh": energy,
            "emissions_kg": energy * self.carbon_grams_per_kwh / 1000,
            "cpu_source": self.source,
            "ram_source": "modelled",
            "gpu_source": "measured" if is_gpu_details_available() else "no GPU",
            "energy_source": self._source_of(total),
            "metered_s": float(total.duration),
            "watts_per_core": self.watts_per_core,
        }

    def _source_of(self, total: Any) -> str:
        if not total.cpu_energy:
            return NOT_MEASURED
        return "measured" if self.source == "measured" and not total.ram_energy else "modelled"

    def stop(self) -> dict[str, object]:
        """End, write the file, and return the last reading."""
        last = self.reading()
        self._tracker.stop()
        values = self._latest.total.values
        lines = (",".join(map(str, values)), ",".join(str(value).replace(",", ";") for value in values.values()))
        self.path.write_text("\n".join(lines) + "\n")
        return last


def modelled_kwh(cpu_seconds: float, watts_per_core: float) -> float:
    """Return what the model books for CPU seconds, to take out a process that is in the tree but not in question."""
    return cpu_seconds * watts_per_core * KWH_PER_WATT_SECOND
