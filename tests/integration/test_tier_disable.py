"""A topic that is no longer copied, one that stops being a table, and one that becomes a table again (KIP-950)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    OffsetSpec,
)

from tests.integration.tier_broker import (
    Feeder,
    alter_topic,
    broker_process,
    consume,
    create_topic,
    highest_offset_in_remote_storage,
    rows,
    table,
)
from tests.processes import BrokerProcess, wait_until

TOPIC = "leaving"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = broker_process(tmp_path).start()
    yield process
    process.stop()
    assert "Traceback" not in process.log_file.read_text(errors="replace")


def log_start(broker: BrokerProcess) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partition = TopicPartition(TOPIC, 0)
    found = admin.list_offsets({partition: OffsetSpec.earliest()})[partition].result(120)
    return int(found.offset)


def local_start(broker: BrokerProcess) -> int:
    names = (broker.data / f"{TOPIC}-0").glob("*.log")
    return min(int(each.stem) for each in names)


def test_copies_end_rows_go_and_come_again(broker: BrokerProcess) -> None:
    create_topic(broker, TOPIC)
    feeder = Feeder(broker.bootstrap, TOPIC)
    feeder.send(rows(4_000))
    feeder.flush()
    lake = broker.lake
    wait_until("the disk to be freed", lambda: local_start(broker) > 2_000, every_s=0.2)
    end = highest_offset_in_remote_storage(lake, TOPIC, 0)

    # Copied no more: what is there is read on, what comes stays on disk.
    alter_topic(broker, TOPIC, remote_log_copy_disable="true", local_retention_ms="-2")
    feeder.send(rows(3_000, start=4_000))
    feeder.flush()
    everything = feeder.acknowledged.partition(0)
    assert consume(broker.bootstrap, TOPIC, 0, end=7_000) == everything
    # One that was on its way may have come to its end.
    assert end <= highest_offset_in_remote_storage(lake, TOPIC, 0) < 4_000

    # No table any more: what the lake has alone is given up, and its rows go.
    kept = local_start(broker)
    alter_topic(
        broker,
        TOPIC,
        remote_storage_enable="false",
        remote_log_copy_disable="false",
        remote_log_delete_on_disable="true",
    )
    assert log_start(broker) == kept
    wait_until("its rows to go", lambda: table(lake, TOPIC)["offset"].min() != 0, every_s=0.2)
    assert consume(broker.bootstrap, TOPIC, 0, start=kept, end=7_000) == {
        offset: row for offset, row in everything.items() if offset >= kept
    }

    # A table again, which goes on where it ended.
    alter_topic(broker, TOPIC, remote_storage_enable="true", local_retention_ms="1")
    feeder.send(rows(2_000, start=7_000))
    feeder.flush()
    wait_until(
        "new rows", lambda: highest_offset_in_remote_storage(lake, TOPIC, 0) > 7_000, every_s=0.2
    )
    found = table(lake, TOPIC)["offset"].to_list()
    assert found == list(range(found[0], found[-1] + 1))
    assert 0 < found[0] <= kept
    read = consume(broker.bootstrap, TOPIC, 0, start=kept, end=9_000)
    assert read == {
        offset: row for offset, row in feeder.acknowledged.partition(0).items() if offset >= kept
    }
