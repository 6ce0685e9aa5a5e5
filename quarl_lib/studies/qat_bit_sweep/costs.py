"""What the policies of the sweep take on this machine: bytes in memory, and microseconds an action on their engine."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pandas as pd

from quarl_lib.inference.benchmark import estimate_us, one_thread
from quarl_lib.inference.engines import make_engine
from quarl_lib.inference.pack import pack, packed_size
from quarl_lib.inference.spec import PRECISIONS
from quarl_lib.sb3 import load_agent
from quarl_lib.sb3.spec import agent_spec
from quarl_lib.studies.qat_bit_sweep.bits import Bits
from quarl_lib.studies.qat_bit_sweep.study import Config, cells_of
from quarl_lib.studies.qat_bit_sweep.summary import AGENT

COLUMNS = (*AGENT, "precision", "weight_bits", "payload_bytes", "microseconds", "backend")


def of_agents(config: Config) -> pd.DataFrame:
    """Return a row for each agent and precision that engines run, fp32 first; after the run.

    What bits cost does not depend on how they were trained. An agent or a precision that no engine takes has no row.
    """
    engines = [bits for bits in map(Bits.parse, config.bits) if bits.grid == "engine" and str(bits) in PRECISIONS]
    rows = []
    found = {(cell.algorithm, cell.env_id): cell for cell in reversed(cells_of(config).started)}
    for agent, cell in reversed(found.items()):
        try:
            spec, weights = agent_spec(load_agent(cell.archive))
        except ValueError:
            continue  # engines do not take what it observes
        for precision, weight_bits in {"fp32": 32, **{str(bits): bits.weight for bits in engines}}.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                try:
                    engine = make_engine(spec, precision)
                except ValueError:
                    continue  # no engine of this machine runs it
            engine.load(pack(spec, weights, precision))
            example = np.zeros(spec.observation_shape, np.uint8 if spec.conv else np.float32)
            with one_thread():
                microseconds = estimate_us(partial(engine, example))
            size = packed_size(spec, precision)
            rows.append((*agent, precision, weight_bits, size, microseconds, engine.backend))
    return pd.DataFrame(rows, columns=list(COLUMNS))
