"""Compaction against a model: readers see of each key what the rules allow, whatever happens to the disk."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kafka_ds.records.batch import Codec, ControlType
from tests.fakes.memory_disk import PowerLoss
from tests.model_runs import examples
from tests.unit.compaction.compaction_bench import CleanerBench, compacted

KEYS = [b"a", b"b", b"c", b"d", b""]
DELETE_RETENTION_MS = 1000
SEEDS = st.integers(0, 2**32)


class CleaningMachine(RuleBasedStateMachine):
    """Rules are a broker's operations on a compacted log, and faults.

    The model is the list of all records ever written. A reader of committed records must see of it:
    - each key's last committed record, at its offset, unless that is a tombstone;
    - those earlier records and tombstones that still exist, each at its own offset;
    - a tombstone for at least delete.retention.ms after the first cleaning that met it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bench = CleanerBench(
            compacted(delete_retention_ms=DELETE_RETENTION_MS, segment_bytes=700)
        )
        self.written: dict[int, tuple[bytes | None, bytes | None, int]] = {}  # by offset; producer
        self.decided: dict[int, bool] = {}  # offset -> committed, once known
        self.open: dict[int, list[int]] = {}
        self.sequences = {1: 0, 2: 0}
        self.count = 0
        self.checkpointed: int | None = None
        self.first_met_ms: dict[int, int] = {}

    # -- what a broker does -----------------------------------------------------------------------

    @rule(
        keys=st.lists(st.sampled_from([*KEYS, None]), min_size=1, max_size=6),
        tombstones=st.integers(0, 63),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
        producer=st.integers(0, 2),
    )
    def produce(
        self, keys: list[bytes | None], tombstones: int, codec: Codec, producer: int
    ) -> None:
        records = []
        for index, key in enumerate(keys):
            self.count += 1
            records.append((key, None if tombstones >> index & 1 else b"%d" % self.count))
        more = {}
        if producer:
            more = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": self.sequences[producer],
                "is_transactional": True,
            }
            self.sequences[producer] += len(records)
        base = self.bench.append(records, codec=codec, **more)
        for index, (key, value) in enumerate(records):
            self.written[base + index] = key, value, producer
            if producer:
                self.open.setdefault(producer, []).append(base + index)
            else:
                self.decided[base + index] = True

    @rule(producer=st.integers(1, 2), control=st.sampled_from(ControlType))
    def end(self, producer: int, control: ControlType) -> None:
        if producer in self.open:
            self.bench.end(producer, control)
            for offset in self.open.pop(producer):
                self.decided[offset] = control == ControlType.COMMIT

    @rule()
    def roll(self) -> None:
        self.bench.log.roll()

    @rule()
    def flush(self) -> None:
        self.bench.log.flush(wait=True)

    @rule(step_ms=st.integers(1, 1500))
    def wait(self, step_ms: int) -> None:
        self.bench.clock.ms += step_ms
        self.bench.disk.now_ms = self.bench.clock.ms
        self.bench.manager.tick(self.bench.clock.ms)

    @rule()
    def clean(self) -> None:
        end = self.cleanable_end()
        self.bench.clean()
        assert self.bench.cleaner.uncleanable() == {}
        self.note_met(end)

    @rule()
    def clean_twice(self) -> None:
        self.roll()
        self.clean()
        self.clean()

    @rule(choice=st.integers(0, 20))
    def truncate(self, choice: int) -> None:
        """Truncate as a follower does, above the clean part, which is committed; here no transactional batches."""
        log = self.bench.log
        places = [log.log_end_offset]
        for header, _ in reversed(self.bench.batches()):
            if header.base_offset < (log.compaction.cleaned_offset or 0) or header.producer_id >= 0:
                break
            places.append(header.base_offset)
        log.truncate_to(places[choice % len(places)])
        self.bench.disk.sync_everything()
        for offset in [each for each in self.written if each >= log.log_end_offset]:
            del self.written[offset]
            self.decided.pop(offset, None)
            self.first_met_ms.pop(offset, None)

    # -- what befalls it --------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.bench.manager.close()
        self.bench.disk.kill()
        self.bench.open()

    @rule(operations=st.integers(0, 40), power=st.booleans(), seed=SEEDS)
    def crash_within_cleaning(self, operations: int, power: bool, seed: int) -> None:
        """Everything was durable; then the machine stops somewhere in the midst of a cleaning."""
        self.bench.log.flush(wait=True)
        asyncio.run(self.bench.manager.checkpoint_recovery_points())
        self.bench.disk.sync_everything()
        end = self.cleanable_end()
        self.bench.disk.crash_after = operations
        try:
            asyncio.run(self.bench.cleaner.clean_dirtiest())
            self.bench.manager.tick(self.bench.clock.ms)
        except PowerLoss:
            pass
        if power:
            self.bench.disk.lose_power(Random(seed))
        else:
            self.bench.disk.kill()
        self.bench.open()
        self.note_met(end)
        left = [path for path in self.bench.disk.paths() if path.endswith((".cleaned", ".swap"))]
        assert left == []

    # -- what must be true ------------------------------------------------------------------------

    def cleanable_end(self) -> int:
        log = self.bench.log
        stable = log.last_stable_offset(log.log_end_offset)
        return max((s.base_offset for s in log.segments.all if s.base_offset <= stable), default=0)

    def note_met(self, end: int) -> None:
        """Tombstones below this offset may have got their time by now."""
        for offset, (_, value, _) in self.written.items():
            if value is None and offset < end:
                self.first_met_ms.setdefault(offset, self.bench.clock.ms)

    @invariant()
    def a_reader_sees_what_the_rules_say(self) -> None:
        seen = self.bench.records()
        offsets = [offset for offset, _, _ in seen]
        assert offsets == sorted(set(offsets))
        by_offset = {offset: (key, value) for offset, key, value in seen}
        for offset, record in by_offset.items():
            assert record == self.written[offset][:2], "a record that is there is as it was written"
        last: dict[bytes, int] = {}
        for offset in sorted(self.written):
            key = self.written[offset][0]
            if self.decided.get(offset) and key is not None:
                last[key] = offset
        now_ms = self.bench.clock.ms
        for key, offset in last.items():
            if self.written[offset][1] is not None:
                assert offset in by_offset, f"the last value of {key!r}"
            elif now_ms < self.first_met_ms.get(offset, now_ms) + DELETE_RETENTION_MS:
                assert offset in by_offset, f"the tombstone of {key!r}"
        for producer, opened in self.open.items():
            for offset in opened:
                assert offset in by_offset, f"a record of producer {producer}'s open transaction"

    @invariant()
    def a_deleted_key_does_not_come_back(self) -> None:
        """An older value may be seen only as long as what replaced it is."""
        seen = {offset for offset, _, _ in self.bench.records()}
        newest: dict[bytes, int] = {}
        for offset in sorted(self.written, reverse=True):
            key = self.written[offset][0]
            if key is None or not self.decided.get(offset):
                continue
            if key in newest and offset in seen:
                assert newest[key] in seen, f"{key!r} at {offset} without its successor"
            newest.setdefault(key, offset)

    @invariant()
    def producers_are_known(self) -> None:
        for producer, sequence in self.sequences.items():
            state = self.bench.log.producers.get(producer)
            if state is not None and state.batches and sequence:
                assert state.last_sequence <= sequence - 1

    @invariant()
    def committed_readers_are_not_misled(self) -> None:
        """What the index calls aborted was aborted, and aborted records that are there are called so."""
        log = self.bench.log
        aborted = log.aborted_transactions(0, log.log_end_offset)
        for offset, _, _ in self.bench.records():
            producer = self.written[offset][2]
            is_called_aborted = any(
                entry.producer_id == producer and entry.first_offset <= offset <= entry.last_offset
                for entry in aborted
            )
            if producer and self.decided.get(offset) is False:
                assert is_called_aborted
            else:
                assert not (producer and is_called_aborted)


TestCleaning = CleaningMachine.TestCase
TestCleaning.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
