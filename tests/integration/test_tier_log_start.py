"""DeleteRecords on a tiered topic: the lake knows where a partition begins, should the broker's disk be lost."""

import json
import shutil
from pathlib import Path

from kafka_ds.protocol.errors import ErrorCode
from tests.integration.log_starts import TOPIC, delete_records, earliest, error_at
from tests.integration.tier_broker import (
    Feeder,
    broker_process,
    create_topic,
    highest_offset_in_remote_storage,
    rows,
)
from tests.processes import BrokerProcess, wait_until


def produce(broker: BrokerProcess, count: int) -> None:
    producing = Feeder(broker.bootstrap, TOPIC)
    producing.send(rows(count))
    producing.flush()


def log_starts(lake: Path) -> list[int]:
    """What the table's commits say of where partition 0 begins, in their order."""
    found = []
    for path in sorted((lake / "topics" / TOPIC / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            txn = json.loads(line).get("txn")
            if txn is not None and txn["appId"].endswith("-0-start"):
                found.append(txn["version"])
    return found


def test_the_lake_remembers_where_a_partition_begins(tmp_path: Path) -> None:
    broker = broker_process(tmp_path)
    broker.start()
    try:
        create_topic(broker, TOPIC)
        produce(broker, 3000)
        wait_until(
            "a tiered segment",
            lambda: highest_offset_in_remote_storage(broker.lake, TOPIC, 0) > 500,
        )
        assert delete_records(broker.bootstrap, 100) == 100
        assert delete_records(broker.bootstrap, 300) == 300
        assert error_at(broker.bootstrap, 299) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert error_at(broker.bootstrap, 300) == ErrorCode.NONE
        wait_until("the lake to hear of it", lambda: log_starts(broker.lake)[-1:] == [300])
        assert log_starts(broker.lake) == sorted(set(log_starts(broker.lake)))

        broker.kill()
        shutil.rmtree(broker.data)
        broker.start()
        wait_until("the beginning", lambda: earliest(broker.bootstrap) == 300)
        assert error_at(broker.bootstrap, 299) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert error_at(broker.bootstrap, 300) == ErrorCode.NONE
    finally:
        broker.stop()
    assert "Traceback" not in broker.log_file.read_text()


def test_the_lake_hears_after_a_restart_what_it_has_missed(tmp_path: Path) -> None:
    """Killed between the answer and the commit: the broker's own directory knows better than the lake."""
    never = {"remote.log.manager.task.interval.ms": 600_000}
    broker = broker_process(tmp_path, never)
    broker.start()
    try:
        create_topic(broker, TOPIC)
        produce(broker, 50)
        assert delete_records(broker.bootstrap, 20) == 20
        assert log_starts(broker.lake) == []
        broker.kill()
        broker.overrides["remote.log.manager.task.interval.ms"] = 500
        broker.start()
        wait_until("the lake to hear of it", lambda: log_starts(broker.lake) == [20])
        wait_until("the beginning", lambda: earliest(broker.bootstrap) == 20)
    finally:
        broker.stop()
