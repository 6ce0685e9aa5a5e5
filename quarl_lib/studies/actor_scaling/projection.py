"""What the model says of machines that are not here, from this run's actor times."""

from __future__ import annotations

import pandas as pd

from quarl_lib.studies.actor_scaling.model import Traffic, bounds, slowest
from quarl_lib.studies.actor_scaling.study import Config


def project(summary: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Return the pace of more cores on more machines: a projection, from this run's actor times.

    Cores that take nothing from each other are assumed: how much they do was measured for this machine only. The cores
    are spread evenly over the nodes, of which one is the learner's.

    Returns:
        One row per learner speed, number of nodes, actor cores (no fewer than nodes) and precision, for the projected
        batch and ratio: steps a second, the side that bounds them, the ratio to fp32 on the same machines, and the
        bandwidth from which on the network does not bind, 0 on one machine.
    """
    of_precision = summary.drop_duplicates("precision").set_index("precision")
    work = (config.projected_samples_per_insert, config.projected_batch_size)
    per_step = config.projected_samples_per_insert / config.projected_batch_size / config.projected_publish_period
    rows = []
    for learner_ms in config.projected_learner_ms:
        for nodes in config.projected_nodes:
            for cores in [cores for cores in config.projected_cores if cores >= nodes]:
                of_setup = []
                for precision, values in of_precision.iterrows():
                    sent = Traffic(
                        values.transition_bytes, values.weights_bytes, per_step, nodes - 1, 1 - 1 / nodes
                    )  # fmt: skip
                    network = sent.us_per_step(config.gigabytes_per_s)
                    sides = bounds(values.actor_us, cores, 1e3 * learner_ms, *work, network=network)
                    others = max(time for side, time in sides.items() if side != "network")
                    of_setup.append(
                        {
                            "learner_ms": learner_ms,
                            "nodes": nodes,
                            "actor_cores": cores,
                            "precision": precision,
                            "steps_per_s": 1e6 / max(sides.values()),
                            "bound_by": slowest(sides),
                            "least_gigabytes_per_s": sent.least_gigabytes_per_s(others),
                        }
                    )
                fp32 = next(row["steps_per_s"] for row in of_setup if row["precision"] == "fp32")
                rows += [{**row, "speedup_over_fp32": row["steps_per_s"] / fp32} for row in of_setup]
    return pd.DataFrame(rows).assign(kind="projection")
