"""`kafka-ds sql --spark`: the exact topic, also what is not in the lake."""

from pathlib import Path

import pytest

from tests.command_line import CommandLine
from tests.processes import running_broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_spark_sees_what_the_lake_does_not_have(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker") as broker:
        kafka_ds = CommandLine(broker.bootstrap, tmp_path)
        kafka_ds.ok("topic", "create", "orders", "--partitions", "2")
        kafka_ds.ok("produce", "orders", typed="a\nb\nc\n")
        lake = ("--lake", str(broker.lake))
        typed = "SELECT count(*) AS records FROM orders\nSELECT * FROM nowhere\n"
        done = kafka_ds.run("sql", "--spark", *lake, typed=typed)
        assert "|3 " in done.output
        assert "nowhere" in done.errors
        assert done.status == 1
