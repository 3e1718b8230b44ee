"""Transactions over a log, in memory: a read_committed reader sees exactly the committed records, in order, once."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.config.broker import BrokerConfig
from broker.coordinator.result import CoordinatorResult, Instant, ProducerIdAndEpoch
from broker.coordinator.transaction.shard import TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
    WriteMarkers,
    decode_record,
    encode_record,
)
from broker.log.own_batches import AppendPosition, accept
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import (
    BatchHeader,
    ControlType,
    Record,
    build_batch,
    end_transaction_marker,
    read_header,
    read_records,
)
from kafka_ds.segments.index import AbortedTxn
from kafka_ds.segments.producers import AppendOrigin, OwnBatch, Producers, record_own
from tests.fakes.settings import log_settings
from tests.model_runs import examples

IDS = ["x", "y"]
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
TIMEOUT_MS = 1_000
# Few, so that those that were fenced are heard of again.
CLIENTS_MAX = 4
CONFIG = log_settings()
NUMBERS = st.integers(0, 50)
# Once, or until it is let in.
TRIES = st.sampled_from([3, 1])
# What happens right after the end of a transaction.
THEN = ["", "repeats", "contradicts", "contradicts later", "a write is late", "markers follow"]


class MemoryLog:
    """A log without files: batches, producers and the index of aborted transactions as the real one has them."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.producers = Producers()
        self.aborted: list[AbortedTxn] = []
        self.end = 0

    def append(self, batch: bytes, origin: AppendOrigin) -> None:
        buffer = bytearray(batch)
        if origin is AppendOrigin.CLIENT:
            self._check(read_header(buffer))
            origin = AppendOrigin.COORDINATOR
        place = AppendPosition(self.end, 0, 0)
        for own in accept(memoryview(buffer), self.producers, CONFIG, origin, place):
            self._record(own, bytes(buffer))

    def _check(self, header: BatchHeader) -> None:
        assert self.producers.check(header, AppendOrigin.CLIENT) is None, "nobody repeats"

    def _record(self, own: OwnBatch, batch: bytes) -> None:
        aborted = record_own(own, self.producers)
        if aborted is not None:
            self.aborted.append(aborted)
        self.batches.append((own.header, batch))
        self.end = own.header.next_offset

    def restart(self) -> None:
        """Replay all there is, as after a crash."""
        batches, self.batches = self.batches, []
        self.producers, self.aborted, self.end = Producers(), [], 0
        for _, batch in batches:
            self.append(batch, AppendOrigin.REPLICATION)

    def read_committed(self) -> list[bytes]:
        """What Kafka's consumers make of a fetch up to the last stable offset and its list of aborted ones."""
        bound = self.producers.last_stable_offset(self.end, 0)
        pending = sorted((a for a in self.aborted if a.first_offset < bound), key=lambda a: a[1])
        skipping: set[int] = set()
        values: list[bytes] = []
        for header, batch in self.batches:
            if header.next_offset > bound:
                break
            while pending and pending[0].first_offset <= header.base_offset:
                skipping.add(pending.pop(0).producer_id)
            if header.is_control:
                skipping.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipping):
                values += [r.value for r in read_records(batch, 0, header) if r.value is not None]
        return values


class ProtocolProducer:
    """A producer that does as the protocol says, as long as nobody is in its way."""

    def __init__(self, transactional_id: str, who: ProducerIdAndEpoch, version: int) -> None:
        self.transactional_id = transactional_id
        self.who = who
        self.version = version
        self.is_fenced = False
        self.sequences: dict[TopicPartition, int] = defaultdict(int)
        self.written: dict[TopicPartition, list[bytes]] = defaultdict(list)


class TransactionModel(RuleBasedStateMachine):
    """Clients begin, write, end, are fenced and time out; the coordinator crashes between any two of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = TransactionCoordinatorShard(BrokerConfig())
        self.records: list[tuple[bytes, bytes | None]] = []
        self.logs = {where: MemoryLog() for where in PARTITIONS}
        self.clients: list[ProtocolProducer] = []
        self.committed: dict[TopicPartition, list[list[bytes]]] = defaultdict(list)
        # Whose decision is in the log: what it wrote, until it counts.
        self.decided: dict[str, dict[TopicPartition, list[bytes]]] = {}
        self.effects: list[tuple[WriteMarkers, list[TopicPartition]]] = []
        # Decisions whose markers were all written.
        self.marked: list[TransactionMetadata] = []
        self.now_ms = 0
        self.next_id = 100
        self.count = 0

    @initialize()
    def begin_with_nothing(self) -> None:
        assert len(self.shard) == 0

    def perform(self, result: CoordinatorResult) -> Any:
        for record in result.records:
            self.records.append(encode_record(*record))
            self.shard.replay(*record)
        for effect in result.effects:
            self.effects.append((effect, sorted(effect.transaction.partitions)))
        if isinstance(result.response, KafkaError):
            raise result.response
        return result.response

    def pick(self, number: int, *, is_fenced: bool | None = None) -> ProtocolProducer:
        among = [c for c in self.clients if is_fenced is None or c.is_fenced is is_fenced]
        return (among or self.clients)[number % len(among or self.clients)]

    def fence(self, transactional_id: str) -> None:
        """Fence every earlier producer with this id."""
        for client in self.clients:
            client.is_fenced = client.is_fenced or client.transactional_id == transactional_id

    # -- clients ------------------------------------------------------------------------------------

    @rule(transactional_id=st.sampled_from(IDS), version=st.sampled_from([0, 2]), tries=TRIES)
    def begin(self, transactional_id: str, version: int, tries: int) -> None:
        """As often as it takes: who must be aborted first is, and its markers are written."""
        for _ in range(tries):
            before = len(self.records)
            try:
                who = self._ask_to_begin(transactional_id)
            except KafkaError:
                if len(self.records) > before:
                    self.fence(transactional_id)
                if tries > 1:
                    self.write_all_markers()
                continue
            self.fence(transactional_id)
            self.clients.append(ProtocolProducer(transactional_id, who, version))
            del self.clients[:-CLIENTS_MAX]
            return

    def _ask_to_begin(self, transactional_id: str) -> ProducerIdAndEpoch:
        self.next_id += 1
        who: ProducerIdAndEpoch = self.perform(
            self.shard.init_producer_id(
                transactional_id,
                TIMEOUT_MS,
                None,
                now_ms=self.now_ms,
                spare_producer_id=self.next_id,
            )
        )
        return who

    @precondition(lambda self: self.clients)
    @rule(
        number=NUMBERS,
        where=st.sampled_from(PARTITIONS),
        count=st.integers(1, 3),
        joins=st.sampled_from([True, True, False]),
    )
    def write(self, number: int, where: TopicPartition, count: int, joins: bool) -> None:
        client = self.pick(number, is_fenced=False)
        if not joins and client.version == 0 and self.state_of(client).is_decided:
            # Before KIP-890 nothing tells such a write from one of the transaction that is being ended, and no client
            # writes there: it joins first, which waits for the end.
            return
        values = [b"%d" % (self.count + i) for i in range(count)]
        try:
            self._write(client, client.who, where, values, joins=joins)
        except KafkaError:
            return
        self.count += count
        client.sequences[where] += count
        client.written[where] += values

    def _write(
        self,
        client: ProtocolProducer,
        who: ProducerIdAndEpoch,
        where: TopicPartition,
        values: list[bytes],
        *,
        joins: bool = True,
    ) -> None:
        """As a client who joins before it writes, or one who does not; raises KafkaError."""
        log = self.logs[where]
        batch = build_batch(
            [Record(i, 0, None, value) for i, value in enumerate(values)],
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=client.sequences[where],
            is_transactional=True,
        )
        if joins:
            self.perform(
                self.shard.add_partitions(
                    client.transactional_id,
                    who,
                    [where],
                    now_ms=self.now_ms,
                    client_transaction_version=client.version,
                )
            )
        # As the broker does: a log in which the transaction is open needs no question.
        if not log.producers.is_in_transaction(who.producer_id, who.producer_epoch):
            self.shard.verify(client.transactional_id, who, where)
        log.append(batch, AppendOrigin.CLIENT)

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS, committed=st.booleans(), then=st.sampled_from(THEN))
    def end(self, number: int, committed: bool, then: str) -> None:
        client = self.pick(number, is_fenced=False)
        before = client.who
        was_open = self.state_of(client) is TransactionState.ONGOING
        try:
            after = self.ask_to_end(client, before, committed)
        except KafkaError:
            return
        if was_open and committed:
            self.decided[client.transactional_id] = dict(client.written)
        client.written = defaultdict(list)
        if then == "repeats":
            with suppress(KafkaError):
                assert self.ask_to_end(client, before, committed) == after
        elif then.startswith("contradicts"):
            if then.endswith("later"):
                self.write_all_markers()
            with pytest.raises(KafkaError):
                self.ask_to_end(client, before, not committed)
        elif then == "a write is late" and client.version == 2:
            # KIP-890: what was on its way when the transaction ended belongs to none.
            with pytest.raises(KafkaError):
                self._write(client, before, PARTITIONS[0], [b"late"])
        elif then == "markers follow":
            self.write_all_markers()
        if client.version == 2 and after != before:
            client.who = after
            # Its transaction had timed out: by its abort it learns the epoch under which it goes on (KIP-890).
            client.is_fenced = False
            client.sequences.clear()

    @precondition(lambda self: any(client.is_fenced for client in self.clients))
    @rule(number=NUMBERS, where=st.sampled_from(PARTITIONS), committed=st.booleans())
    def who_was_fenced_speaks(self, number: int, where: TopicPartition, committed: bool) -> None:
        client = self.pick(number, is_fenced=True)
        before = self.kept_of(client)
        with pytest.raises(KafkaError):
            self._write(client, client.who, where, [b"zombie"])
        with suppress(KafkaError):  # its last end may be answered again
            self.ask_to_end(client, client.who, committed)
        assert self.kept_of(client) == before

    def kept_of(self, client: ProtocolProducer) -> object:
        """What the coordinator knows of a client's transaction, and how far the logs are."""
        return self.shard.find(client.transactional_id), [log.end for log in self.logs.values()]

    def ask_to_end(self, client: ProtocolProducer, who: ProducerIdAndEpoch, committed: bool) -> Any:
        self.next_id += 1
        return self.perform(
            self.shard.end(
                client.transactional_id,
                who,
                committed=committed,
                client_transaction_version=client.version,
                now_ms=self.now_ms,
                spare_producer_id=self.next_id,
            )
        )

    def state_of(self, client: ProtocolProducer) -> TransactionState:
        found = self.shard.find(client.transactional_id)
        assert found is not None
        return found.state

    # -- the coordinator ----------------------------------------------------------------------------

    @precondition(lambda self: self.effects)
    @rule(number=NUMBERS)
    def write_one_marker(self, number: int) -> None:
        effect, left = self.effects[number % len(self.effects)]
        decided = effect.transaction
        if left:
            where = left.pop(0)
            kind = ControlType.COMMIT if decided.is_commit else ControlType.ABORT
            marker = end_transaction_marker(
                kind,
                timestamp=0,
                producer_id=decided.producer_id,
                producer_epoch=decided.producer_epoch,
                coordinator_epoch=0,
            )
            self.logs[where].append(marker, AppendOrigin.COORDINATOR)
            if decided.is_commit:
                values = self.decided[decided.transactional_id].pop(where, [])
                self.committed[where].append(values)
        if not left:
            self.effects.remove((effect, left))
            self.perform(self.shard.markers_written(decided, self.now_ms))
            self.marked.append(decided)

    def write_all_markers(self) -> None:
        while self.effects:
            self.write_one_marker(0)

    @precondition(lambda self: self.marked)
    @rule(number=NUMBERS)
    def markers_are_said_to_be_written_twice(self, number: int) -> None:
        """By a task that came late: the transaction is over, and the next one may be under way."""
        decided = self.marked[number % len(self.marked)]
        if self.shard.find(decided.transactional_id) == decided:
            return  # another that looks the same, as no time has passed
        assert self.shard.markers_written(decided, self.now_ms) == CoordinatorResult()

    @rule()
    def crash(self) -> None:
        """The coordinator and the logs restart with what they wrote."""
        self.shard = TransactionCoordinatorShard(BrokerConfig())
        for key, value in self.records:
            record = decode_record(key, value)
            assert record is not None
            self.shard.replay(*record)
        for log in self.logs.values():
            log.restart()
        self.effects = [
            (effect, sorted(effect.transaction.partitions))
            for effect in self.shard.loaded(Instant(self.now_ms, 0)).effects
        ]

    @rule(passed_ms=st.sampled_from([1, TIMEOUT_MS // 4, TIMEOUT_MS + 1]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for result in self.shard.timed_out(self.now_ms):
            self.perform(result)
            self.fence(result.records[0].transactional_id)

    # -- what must hold -----------------------------------------------------------------------------

    @invariant()
    def readers_see_committed_records_only_and_once(self) -> None:
        for where, log in self.logs.items():
            seen = log.read_committed()
            expected = {value for values in self.committed[where] for value in values}
            assert len(set(seen)) == len(seen)
            assert set(seen) <= expected
            if not any(producer.transaction_start >= 0 for _, producer in log.producers):
                assert set(seen) == expected, "nothing is open, so nothing is held back"
            assert seen == sorted(seen, key=int), "in the order in which they were written"

    def teardown(self) -> None:
        """Whatever happened, all comes to an end."""
        self.time_passes(10 * TIMEOUT_MS)
        self.write_all_markers()
        self.readers_see_committed_records_only_and_once()
        for log in self.logs.values():
            assert not any(producer.transaction_start >= 0 for _, producer in log.producers)


TransactionModel.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=50, deadline=None
)
TestTransactions = TransactionModel.TestCase
