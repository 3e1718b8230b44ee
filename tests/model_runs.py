"""How many examples the models run: few in `make test`, as many as `make sim` asks for.

`make test` draws the same examples each time, so that a failure comes from a change; `make sim` draws new ones.
Hypothesis' deadline is off, because the machine may be busy with other work.
"""

import os

from hypothesis import HealthCheck, settings

SEEDS = "KAFKA_DS_SIM_SEEDS"
FIRST = "KAFKA_DS_SIM_FIRST"


def examples(default: int) -> int:
    """``KAFKA_DS_SIM_SEEDS``, else ``default``."""
    return int(os.environ.get(SEEDS, default))


def seeds(default: int) -> range:
    """So many from ``KAFKA_DS_SIM_FIRST`` on, else from 0."""
    first = int(os.environ.get(FIRST, 0))
    return range(first, first + examples(default))


def prepare() -> None:
    """Set Hypothesis' profile, before the first test is imported."""
    settings.register_profile(
        "kafka_ds",
        deadline=None,
        derandomize=SEEDS not in os.environ,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("kafka_ds")
