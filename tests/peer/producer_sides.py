"""Shell: two brokers whose producers are named alike, and what their readers see in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from kafka_ds.protocol.messages import (
    CreateTopicsRequest,
    DescribeTransactionsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    ListOffsetsRequest,
)
from kafka_ds.protocol.messages.data import FetchPartition
from kafka_ds.protocol.messages.offsets import ListOffsetsPartition
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Record,
    control_type,
    iterate_headers,
    read_header,
    read_records,
    seal,
)
from tests.peer.pair_cases import Case
from tests.peer.pair_sides import TRANSIENT, PairSide
from tests.peer.pair_values import PRODUCERS_FROM
from tests.processes import wait_until
from tests.requests import build

NAMED_FROM = PRODUCERS_FROM + 1_000
NOT_ENOUGH_REPLICAS = 19
# How long one broker asks for patience.
PATIENCE_S = 60.0


class ProducerSide(PairSide):
    """A broker whose producer ids are named in the order in which it tells of them."""

    def _own(self, value: Any) -> Any:
        if isinstance(value, bytes) and len(value) > HEADER_BYTES:
            header = read_header(value)
            own = self._producers.get(header.producer_id, header.producer_id)
            return seal(header._replace(producer_id=own), value[HEADER_BYTES:])
        return super()._own(value)

    def _plain(self, value: Any, name: str = "") -> Any:
        if name == "producer_id":
            return self._named(value) if value > 0 else value
        return super()._plain(value, name)

    def _named(self, own: int) -> int:
        for name, known in self._producers.items():
            if known == own:
                return name
        name = NAMED_FROM + len(self._producers)
        self._producers[name] = own
        return name

    def ready(self) -> None:
        """Wait for the coordinator of transactions."""
        asked = FindCoordinatorRequest(key="walks", key_type=1)
        wait_until("a coordinator", lambda: self.client.ask(asked, 2).error_code == 0)
        wait_until("a producer", lambda: self._init(1, "walks"))

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic, and wait until it is known."""
        wanted = build(CreatableTopic, name=topic, num_partitions=partitions, replication_factor=1)
        self.client.ask(CreateTopicsRequest(timeout_ms=30_000, topics=[wanted]), 5)
        wait_until("the topic", lambda: self._leads(topic, partitions))

    def _leads(self, topic: str, partitions: int) -> bool:
        asked = [ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(partitions)]
        request = build(ListOffsetsRequest, replica_id=-1, name=topic, partitions=asked)
        (found,) = self.client.ask(request, 5).topics
        is_known = any(t.name == topic and not t.error_code for t in self.topics())
        return is_known and not any(each.error_code for each in found.partitions)

    def settled(self, case: Case) -> Any:
        """The answer that does not ask for patience."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.send(case)
            answer = self.receive(case)
            if not _asks_for_patience(answer) or time.monotonic() > deadline:
                return answer
            time.sleep(0.005)

    def complete(self, transactional_ids: list[str]) -> None:
        """Wait until transactions that are decided are complete."""
        asked = DescribeTransactionsRequest(transactional_ids=transactional_ids)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            states = self.client.ask(asked, 0).transaction_states
            if not any(each.transaction_state.startswith("Prepare") for each in states):
                return
            time.sleep(0.005)
        raise AssertionError(f"{self.bootstrap} does not complete {states}")

    def seen(self, topic: str, partition: int, isolation_level: int) -> dict[str, Any]:
        """What a reader is told of a partition: its ends, which transactions were aborted, and what is in it."""
        batches: list[tuple[Any, ...]] = []
        aborted: set[tuple[int, int]] = set()
        offset = 0
        while True:
            found = self._fetched(topic, partition, offset, isolation_level)
            read = [self._told(*each) for each in _batches_of(found)]
            # One that lies behind what is read means nothing: who is told of it is each broker's own affair.
            aborted |= {
                (each.first_offset, self._named(each.producer_id))
                for each in found.aborted_transactions or ()
                if each.first_offset < found.last_stable_offset
            }
            if not read:
                break
            batches += read
            offset = read[-1][1] + 1
        return {
            "high_watermark": found.high_watermark,
            "last_stable_offset": found.last_stable_offset,
            "aborted": sorted(aborted),
            "batches": batches,
        }

    def _fetched(self, topic: str, partition: int, offset: int, isolation_level: int) -> Any:
        wanted = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = build(
            FetchRequest,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=isolation_level,
            topics=[{"topic": topic, "partitions": [wanted]}],
        )
        (found,) = self.client.ask(request, 12).responses[0].partitions
        assert not found.error_code, found
        return found

    def _told(self, header: BatchHeader, records: list[Record]) -> tuple[Any, ...]:
        return (
            header.base_offset,
            header.base_offset + header.last_offset_delta,
            header.is_transactional,
            self._named(header.producer_id) if header.producer_id > 0 else -1,
            header.producer_epoch,
            header.base_sequence,
            [(control_type(r) if header.is_control else r.value) for r in records],
        )


def _batches_of(found: Any) -> Iterator[tuple[BatchHeader, list[Record]]]:
    data = bytes(found.records or b"")
    for position, header in iterate_headers(data):
        yield header, read_records(data, position, header)


def _asks_for_patience(answer: Any) -> bool:
    if isinstance(answer, dict):
        return any(
            value in (*TRANSIENT, NOT_ENOUGH_REPLICAS)
            if name.endswith("error_code")
            else _asks_for_patience(value)
            for name, value in answer.items()
        )
    return isinstance(answer, list) and any(map(_asks_for_patience, answer))
