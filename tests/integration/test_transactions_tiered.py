"""A topic with aborted transactions in the lake: no aborted row in its table, and nothing lost to its readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import FetchRequest
from kafka_ds.protocol.messages.data import FetchPartition
from kafka_ds.records.batch import iterate_headers
from tests.integration.raw_client import RawClient
from tests.integration.tier_broker import broker_process, consume, create_topic, table
from tests.integration.transactional_client import TransactionalClient
from tests.processes import BrokerProcess, wait_until
from tests.requests import build

TOPIC = "payments"
BATCH = 100
VALUE_BYTES = 1_000


class TransactionLedger:
    """Writes batches of records in transactions, and records each one's offset and outcome."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._clients: dict[str, TransactionalClient] = {}
        self._open: dict[str, dict[int, bytes]] = {}
        self.end = 0
        self.committed: dict[int, bytes] = {}
        self.aborted: dict[int, bytes] = {}
        self.markers: list[int] = []

    def write(self, who: str, batches: int) -> None:
        if who not in self._clients:
            client = self._clients[who] = TransactionalClient(self._bootstrap, who, TOPIC)
            client.begin()
        client = self._clients[who]
        if who not in self._open:
            self._open[who] = {}
            assert client.add(0) is ErrorCode.NONE
        for _ in range(batches):
            offsets = range(self.end, self.end + BATCH)
            values = [(b"%s-%d-" % (who.encode(), i)).ljust(VALUE_BYTES, b"v") for i in offsets]
            assert client.write(values) is ErrorCode.NONE
            self._open[who] |= dict(zip(offsets, values, strict=True))
            self.end += BATCH

    def finish(self, who: str, *, committed: bool) -> None:
        assert self._clients[who].end(committed=committed) is ErrorCode.NONE
        records = self._open.pop(who)
        (self.committed if committed else self.aborted).update(records)
        self.markers.append(self.end)
        self.end += 1

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = broker_process(tmp_path, {"transaction.state.log.num.partitions": 3}).start()
    yield process
    process.stop()


def local_start(broker: BrokerProcess) -> int:
    return min(int(path.stem) for path in (broker.data / f"{TOPIC}-0").glob("*.log"))


def test_aborted_records_are_residue_and_never_rows(broker: BrokerProcess) -> None:
    create_topic(broker, TOPIC, local_retention_bytes=1)
    ledger = TransactionLedger(broker.bootstrap)
    ledger.write("a", 3)
    ledger.finish("a", committed=True)
    # The records of this one lie in other segments than its marker.
    ledger.write("b", 4)
    ledger.write("a", 9)
    ledger.finish("a", committed=True)
    ledger.finish("b", committed=False)
    ledger.write("b", 5)
    ledger.write("a", 4)
    ledger.finish("b", committed=True)
    ledger.finish("a", committed=False)
    ledger.write("a", 12)
    ledger.finish("a", committed=True)
    ledger.close()

    def is_cold() -> bool:
        return local_start(broker) > max(ledger.aborted)

    wait_until("the aborted records to leave the local disk", is_cold, every_s=0.2)
    start = local_start(broker)
    rows = table(broker.lake, TOPIC).filter(pl.col("offset") < start)
    found = dict(rows.select("offset", "value").iter_rows())
    assert found == {o: value for o, value in ledger.committed.items() if o < start}

    read = consume(broker.bootstrap, TOPIC, 0, end=ledger.end, isolation_level="read_committed")
    assert {offset: row.value for offset, row in read.items()} == ledger.committed
    read = consume(broker.bootstrap, TOPIC, 0, end=ledger.end, isolation_level="read_uncommitted")
    everything = ledger.committed | ledger.aborted
    assert {offset: row.value for offset, row in read.items()} == everything
    assert cold_markers(broker.bootstrap, start) == [o for o in ledger.markers if o < start]


def cold_markers(bootstrap: str, end: int) -> list[int]:
    """The offsets of control batches below `end`, as Fetch gives them."""
    markers: list[int] = []
    position = 0
    with RawClient(bootstrap) as client:
        while position < end:
            wanted = FetchPartition(partition=0, fetch_offset=position, partition_max_bytes=1 << 20)
            request = build(
                FetchRequest,
                max_wait_ms=1000,
                min_bytes=1,
                topics=[{"topic": TOPIC, "partitions": [wanted]}],
            )
            data = client.ask(request, 12).responses[0].partitions[0]
            assert data.error_code == ErrorCode.NONE
            headers = [header for _, header in iterate_headers(data.records)]
            assert headers, f"nothing at {position}"
            markers += [h.base_offset for h in headers if h.is_control and h.base_offset < end]
            position = headers[-1].next_offset
    return markers
