"""How many examples the models run: few in `make test`, as many as asked for in `make sim`.

`make test` draws the same ones each time, so that a change is judged by what it changed; `make sim` others.
How long an example takes is no test's business on a machine that does other things as well.
"""

import os

from hypothesis import HealthCheck, settings

SEEDS = "KAFKA_DS_SIM_SEEDS"


def examples(default: int) -> int:
    """``KAFKA_DS_SIM_SEEDS``, else ``default``."""
    return int(os.environ.get(SEEDS, default))


def prepare() -> None:
    """Give Hypothesis its settings, before the first test is imported."""
    settings.register_profile(
        "kafka_ds",
        deadline=None,
        derandomize=SEEDS not in os.environ,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("kafka_ds")
