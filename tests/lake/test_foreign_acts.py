"""Spark at a topic's table while brokers of the simulation write it: deletion vectors, RESTORE, VACUUM of 0 hours."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.model_runs import examples
from tests.sim.shapes import foreign
from tests.sim.spark_engine import SparkEngine

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize("seed", range(examples(2)))
def test_spark_erases_restores_and_vacuums(seed: int, spark: Any) -> None:
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    scenario = foreign(seed, engine=partial(SparkEngine, spark=spark))
    try:
        scenario.run()
    finally:
        print("\n".join(each for each in scenario.world.lines if "engine:" in each))
