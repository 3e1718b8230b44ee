"""Whole runs of a cluster under faults, each a function of its seed: `make sim SEEDS=n`."""

from __future__ import annotations

import pytest

from tests.model_runs import examples
from tests.sim.faults import Plan
from tests.sim.scenario import Scenario, Shape

# What CI runs. A failing seed says what happened, and runs again with `pytest -k "test_one_broker[7]"`.
SEEDS = examples(12)
COORDINATED_SEEDS = examples(4)

ALONE = Shape(brokers=1, replication_factor=1, min_insync_replicas=1, seconds=40)
# One replica: what its disk has forgotten nobody else has.
HARMLESS_ALONE = (
    "kill",
    "stop",
    "pause",
    "slow_disk",
    "lake_away",
    "lake_fails",
    "lake_loses_answers",
    "clock_jump",
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_broker(seed: int) -> None:
    Scenario(seed, ALONE, Plan(kinds=HARMLESS_ALONE)).run()


COORDINATED = Shape(plain=0, idempotent=1, transactional=2, seconds=30)
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}
WHO_COORDINATES_GOES = ("kill", "stop", "pause", "isolate", "cut", "slow_way")


@pytest.mark.parametrize("seed", range(COORDINATED_SEEDS))
def test_transactions_whose_coordinators_go(seed: int) -> None:
    Scenario(seed, COORDINATED, Plan(kinds=WHO_COORDINATES_GOES), REPLICATED).run()
