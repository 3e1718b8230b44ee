"""A log, a disk that may fail at any operation, and a model: acknowledged records are there after every restart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.log.log import Log
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import ControlType, iterate_headers, stamp
from kafka_ds.segments.producers import AppendOrigin
from tests.fakes.clock import ManualClock
from tests.fakes.memory_disk import ManualBackground, MemoryDisk, PowerLoss
from tests.fakes.settings import log_settings
from tests.model_runs import examples
from tests.unit.log.log_model import LogModel, ModelBatch, client_batch, marker

FOLDER = "/data/orders-0"
CONFIG = log_settings(
    segment_bytes=1500, index_interval_bytes=200, segment_index_bytes=800, max_message_bytes=1400
)
PRODUCERS = st.integers(0, 2)
SEEDS = st.integers(0, 2**32)


class LogMachine(RuleBasedStateMachine):
    """Rules are a broker's operations on a log, and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.background = ManualBackground()
        self.model = LogModel()
        self.epoch = 0
        self.checkpoint = 0
        self.remembered: dict[int, list[tuple[bytes, int]]] = {}
        self.in_flight: ModelBatch | None = None
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> Log:
        self.background = ManualBackground()
        return Log.open(
            FOLDER,
            CONFIG,
            self.disk,
            self.clock,
            topic="orders",
            partition=0,
            clean_shutdown=clean,
            recovery_point=self.checkpoint,
            background=self.background,
        )

    # -- what a broker does -----------------------------------------------------------------------

    def batch(
        self, producer: int, count: int, value_bytes: int, shift_ms: int, *, transactional: bool
    ) -> bytearray:
        state = self.model.replay()[0].get(producer)
        sequence = (state.last_sequence + 1) if state else 0
        if producer and state and state.transaction_start >= 0:
            transactional = True
        return client_batch(
            count,
            value_bytes=value_bytes,
            timestamp_ms=self.clock.ms + shift_ms,
            producer_id=producer or -1,
            producer_epoch=0 if producer else -1,
            base_sequence=sequence if producer else -1,
            is_transactional=bool(producer) and transactional,
        )

    def append(self, data: bytearray, kind: ControlType | None = None) -> bool:
        """Append and note; False where the disk was full."""
        sent = bytes(data)
        end_offset = self.log.log_end_offset
        stamped = bytearray(data)
        stamp(stamped, 0, base_offset=end_offset, leader_epoch=self.epoch)
        self.in_flight = ModelBatch(bytes(stamped), kind)
        origin = AppendOrigin.CLIENT if kind is None else AppendOrigin.COORDINATOR
        try:
            info = self.log.append(
                memoryview(data), leader_epoch=self.epoch, now_ms=self.clock.ms, origin=origin
            )
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert self.disk.capacity_bytes is not None
            self.in_flight = None
            return False
        assert info.first_offset == end_offset
        assert not info.duplicate
        self.model.batches.append(self.in_flight)
        self.in_flight = None
        header = self.model.batches[-1].header
        if header.producer_id >= 0 and kind is None:
            remembered = self.remembered.setdefault(header.producer_id, [])
            remembered.append((sent, info.first_offset))
            del remembered[:-5]
        return True

    @rule(
        producer=PRODUCERS,
        count=st.integers(1, 6),
        value_bytes=st.integers(0, 150),
        shift_ms=st.integers(-100, 100),
        transactional=st.booleans(),
    )
    def produce_one(
        self, producer: int, count: int, value_bytes: int, shift_ms: int, transactional: bool
    ) -> None:
        self.append(self.batch(producer, count, value_bytes, shift_ms, transactional=transactional))

    @rule(count=st.integers(2, 8), seed=SEEDS)
    def produce_many(self, count: int, seed: int) -> None:
        random = Random(seed)
        for _ in range(count):
            self.produce_one(
                producer=random.randint(0, 2),
                count=random.randint(1, 6),
                value_bytes=random.choice([0, 10, 150]),
                shift_ms=random.randint(-50, 50),
                transactional=random.random() < 0.3,
            )

    @rule(producer=st.integers(1, 2), control=st.sampled_from(ControlType))
    def end_transaction(self, producer: int, control: ControlType) -> None:
        self.append(marker(control, producer, timestamp_ms=self.clock.ms), control)

    @rule(producer=st.integers(1, 2), which=st.integers(0, 4))
    def repeat(self, producer: int, which: int) -> None:
        remembered = self.remembered.get(producer, [])
        if which < len(remembered):
            sent, first_offset = remembered[which]
            info = self.log.append(
                memoryview(bytearray(sent)), leader_epoch=self.epoch, now_ms=self.clock.ms
            )
            assert info.duplicate
            assert info.first_offset == first_offset

    @rule(gap=st.integers(1, 5))
    def produce_out_of_order(self, gap: int) -> None:
        state = self.model.replay()[0].get(1)
        if state is not None:
            data = client_batch(
                1,
                timestamp_ms=self.clock.ms,
                producer_id=1,
                producer_epoch=0,
                base_sequence=state.last_sequence + 1 + gap,
                is_transactional=True,
            )
            with pytest.raises(KafkaError) as raised:
                self.log.append(memoryview(data), leader_epoch=self.epoch, now_ms=self.clock.ms)
            assert raised.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush(wait=True)
        assert self.log.recovery_point == self.log.log_end_offset

    @rule()
    def finish_background(self) -> None:
        self.background.run()

    @rule()
    def write_checkpoint(self) -> None:
        self.checkpoint = self.log.recovery_point

    @rule()
    def change_leader(self) -> None:
        self.epoch += 1
        self.log.assign_leader_epoch(self.epoch, self.log.log_end_offset)

    @rule(step_ms=st.integers(1, 1000))
    def wait(self, step_ms: int) -> None:
        self.clock.ms += step_ms
        self.log.tick(self.clock.ms)

    @rule(choice=st.floats(0, 1))
    def truncate(self, choice: float) -> None:
        boundaries = self.model.boundaries()
        offset = boundaries[-1 - int(choice**4 * (len(boundaries) - 1))]
        self.log.truncate_to(offset)
        # What is cut off may be back after a loss of power, as in Kafka: the epochs tell that it is
        # another leader's. Here it is gone for good, so that there is one model.
        self.disk.sync_everything()
        self.model.cut(offset)
        self.checkpoint = min(self.checkpoint, self.log.recovery_point)
        self.remembered.clear()

    # -- what befalls it --------------------------------------------------------------------------

    @rule()
    def stop(self) -> None:
        assert self.log.close()
        self.checkpoint = self.log.recovery_point
        self.disk.kill()
        before = self.disk.bytes_read
        self.restart(clean=True, at_least=self.model.end_offset)
        assert self.disk.bytes_read - before < 12_000

    @rule()
    def kill(self) -> None:
        self.disk.kill()
        self.restart(clean=False, at_least=self.model.end_offset)

    @rule(seed=SEEDS)
    def lose_power(self, seed: int) -> None:
        durable = self.log.recovery_point
        self.disk.lose_power(Random(seed))
        self.restart(clean=False, at_least=durable)

    @rule(
        operations=st.integers(0, 12),
        seed=st.none() | SEEDS,
        action=st.sampled_from(["produce", "roll", "flush", "finish_background", "stop_half"]),
    )
    def crash_within(self, operations: int, seed: int | None, action: str) -> None:
        self.disk.crash_after = operations
        with suppress(PowerLoss):
            self.act(action, operations)
        durable = self.log.recovery_point if seed is not None else self.model.end_offset
        if self.in_flight is not None:
            self.model.batches.append(self.in_flight)
            self.in_flight = None
        if seed is None:
            self.disk.kill()
        else:
            self.disk.lose_power(Random(seed))
        self.restart(clean=False, at_least=durable)

    def act(self, action: str, size: int) -> None:
        steps: dict[str, Callable[[], object]] = {
            "produce": lambda: self.append(
                self.batch(1, 3, 30 * size, 0, transactional=size % 2 == 0)
            ),
            "roll": self.log.roll,
            "flush": lambda: self.log.flush(wait=True),
            "finish_background": self.background.run,
            "stop_half": self.log.close,
        }
        steps[action]()

    @rule(room=st.integers(0, 700), value_bytes=st.integers(1, 150))
    def fill_disk(self, room: int, value_bytes: int) -> None:
        used = sum(len(self.disk.contents(path)) for path in self.disk.paths())
        self.disk.capacity_bytes = used + room
        for _ in range(4):
            if not self.append(self.batch(2, 3, value_bytes, 0, transactional=False)):
                break
        self.disk.capacity_bytes = None

    @precondition(lambda self: self.model.batches)
    @rule(junk=st.binary(min_size=1, max_size=200))
    def append_junk(self, junk: bytes) -> None:
        """Bytes after the log's end that were not written through the log, found after a crash."""
        self.disk.kill()
        active = max(path for path in self.disk.paths() if path.endswith(".log"))
        self.disk.contents(active).extend(junk)
        self.restart(clean=False, at_least=self.model.end_offset)

    @rule(kind=st.sampled_from([".index", ".timeindex", ".snapshot", ".txnindex"]), seed=SEEDS)
    def damage_what_is_derived(self, kind: str, seed: int) -> None:
        """A crash that left an index or snapshot torn, gone or full of zeros."""
        random = Random(seed)
        self.disk.kill()
        for path in self.disk.paths():
            # Below the recovery point only what is checked when it is read may be damaged.
            if path.endswith(kind) and random.random() < 0.5 and kind != ".txnindex":
                data = self.disk.contents(path)
                if random.random() < 0.3:
                    self.disk.unlink(path)
                elif random.random() < 0.5:
                    data.extend(bytes(random.randint(1, 100)))
                else:
                    del data[random.randint(0, len(data)) :]
        self.checkpoint = 0
        self.restart(clean=False, at_least=self.model.end_offset)

    def restart(self, *, clean: bool, at_least: int) -> None:
        self.log = self.open(clean=clean)
        end_offset = self.log.log_end_offset
        assert at_least <= end_offset <= self.model.end_offset
        assert end_offset in self.model.boundaries()
        self.model.cut(end_offset)
        self.remembered = {}
        for producer, state in self.model.replay()[0].items():
            for batch in self.model.batches:
                header = batch.header
                if header.producer_id == producer and header.last_offset == state.last_offset:
                    sent = bytearray(batch.data)
                    stamp(sent, 0, base_offset=0, leader_epoch=0)
                    self.remembered[producer] = [(bytes(sent), header.base_offset)]
        leftovers = [p for p in self.disk.paths() if p.endswith((".deleted", ".tmp", ".swap"))]
        assert not leftovers

    # -- what holds at all times ------------------------------------------------------------------

    @invariant()
    def ends_agree(self) -> None:
        assert self.log.log_end_offset == self.model.end_offset
        assert self.log.recovery_point <= self.log.log_end_offset
        assert self.log.size_bytes == len(self.model.bytes)

    @invariant()
    def producers_agree(self) -> None:
        producers, aborted = self.model.replay()
        assert {producer for producer, _ in self.log.producers} == set(producers)
        for producer_id, expected in producers.items():
            state = self.log.producers.get(producer_id)
            assert state is not None
            last = state.batches[-1] if state.batches else None
            assert (state.epoch, state.transaction_start) == (
                expected.epoch,
                expected.transaction_start,
            )
            assert state.last_sequence == expected.last_sequence
            assert (last.last_offset if last else -1) == expected.last_offset
        end_offset = self.model.end_offset
        assert self.log.aborted_transactions(0, end_offset) == aborted
        assert self.log.last_stable_offset(end_offset) == self.model.last_stable_offset()

    @invariant()
    def everything_is_read(self) -> None:
        end_offset = self.model.end_offset
        collected, offset = b"", 0
        while offset < end_offset:
            found = self.log.read(
                offset, max_bytes=600, upper_bound_offset=end_offset, min_one_batch=True
            )
            assert found.size_bytes == sum(part.size_bytes for part in found.slices) > 0
            for part in found.slices:
                data = part.read()
                for _, header in iterate_headers(data):
                    assert header.base_offset == offset
                    offset = header.next_offset
                    epoch = self.log.leader_epochs.epoch_for_offset(header.base_offset)
                    assert epoch == header.leader_epoch
                collected += data
            assert found.upper_bound_offset >= offset
        assert collected == self.model.bytes

    @rule(choice=st.floats(0, 1), max_bytes=st.integers(0, 2000), bound=st.floats(0, 1))
    def read_from_anywhere(self, choice: float, max_bytes: int, bound: float) -> None:
        end_offset = self.model.end_offset
        offset = int(choice * end_offset)
        upper = int(bound * end_offset)
        found = self.log.read(
            offset, max_bytes=max_bytes, upper_bound_offset=upper, min_one_batch=True
        )
        data = b"".join(part.read() for part in found.slices)
        wanted = [
            batch
            for batch in self.model.batches
            if batch.header.last_offset >= offset and batch.header.next_offset <= upper
        ]
        if not data:
            assert not wanted or offset >= upper
            return
        headers = [header for _, header in iterate_headers(data)]
        assert sum(header.size_in_bytes for header in headers) == len(data)
        assert data == b"".join(batch.data for batch in wanted)[: len(data)]
        assert len(data) <= max_bytes or len(headers) == 1

    @rule(shift_ms=st.integers(-200, 3000))
    def look_up_a_time(self, shift_ms: int) -> None:
        timestamp_ms = 1_700_000_000_000 + shift_ms
        found = self.log.offset_for_timestamp(timestamp_ms)
        expected = self.model.first_at_or_after(timestamp_ms)
        assert (None if found is None else found[:2]) == expected

    @rule()
    def look_up_the_latest(self) -> None:
        found = self.log.max_timestamp_offset()
        records = [record for batch in self.model.batches for record in batch.records]
        latest = max((record.timestamp for record in records), default=None)
        assert (None if found is None else found.timestamp_ms) == latest
        if found is not None:
            assert found.offset == min(r.offset for r in records if r.timestamp == latest)


TestLogCrashes = LogMachine.TestCase
TestLogCrashes.settings = settings(
    max_examples=examples(60),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
