"""A stream's sink goes on after all disks are lost: what the lake brought back is not written again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kafka_ds.sink.options import DECISIONS_TOPIC
from tests.integration.sink_life import PARTITIONS, each_once, life
from tests.integration.tier_broker import QUICK, create_topic, restore, table
from tests.processes import running_broker, wait_until

BATCHES = 3
SETTINGS = {**QUICK, "lake.max.lag.ms": 300, "lake.offsets.interval.ms": 200}


@pytest.mark.timeout(600)
def test_a_batch_that_was_decided_before_a_restore_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark had not noted yet that it was done, and plays it again on the restored disks."""
    with running_broker(tmp_path, SETTINGS) as broker:
        topics = ["orders", "payments"]
        for name in topics:
            create_topic(broker, name, PARTITIONS, retention_ms=-1)
        spark = life(broker.bootstrap, topics, monkeypatch)
        for number in range(BATCHES):
            spark.batch(number)

        def count(topic: str) -> int:
            # A table's folder is there a moment before its first commit.
            log = broker.lake / "topics" / topic / "_delta_log"
            return len(table(broker.lake, topic)) if any(log.glob("*.json")) else 0

        def is_tiered() -> bool:
            # A decision, and that it is carried out.
            notes = count(DECISIONS_TOPIC) == 2 * BATCHES
            return notes and sum(map(count, topics)) == BATCHES * spark.rows_a_batch

        wait_until("all rows and decisions to be tiered", is_tiered, timeout_s=60)
        broker.kill()
        shutil.rmtree(broker.data)
        restored = restore(broker)
        assert restored.returncode == 0, restored.stderr
        broker.start()
        spark.is_dead = True
        spark.batch(BATCHES - 1)
        spark.batch(BATCHES)
        each_once(spark, BATCHES + 1)
