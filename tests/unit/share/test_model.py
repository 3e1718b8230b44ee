"""Random lives of a share partition against a small model: several members, failed writes, reloads by new leaders.

What holds: an answered acknowledgement is final, across leaders too; one member at a time has a record; written
delivery counts are never lost, and no record is delivered more often than allowed; and in the end every record is
done with: acknowledged, or delivered as often as allowed. With a dead-letter topic, what was rejected or delivered as
often as allowed, and not accepted, is there.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from broker.coordinator.share.share_group_offset import combine
from broker.share.share_partition import (
    AcknowledgeType,
    AcquireLimits,
    FetchedBatch,
    SharePartition,
    SharePartitionConfig,
    StateWrite,
)
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages.share_fetch import AcknowledgementBatch
from kafka_ds.protocol.messages.share_state import StateBatch

MEMBERS = ("a", "b", "c")
CONFIG = SharePartitionConfig(lock_ms=10, delivery_count_limit=3, record_locks_max=12)
FINAL = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.GAP)
STEPS, ROUNDS = 120, 150


def random_log(random: Random) -> list[FetchedBatch]:
    """Batches, with offsets missing between some of them as in a compacted log."""
    log, offset = [], 0
    for _ in range(random.randint(5, 15)):
        offset += random.choice([0, 0, 0, 1, 3])
        last = offset + random.randint(0, 5)
        log.append(FetchedBatch(offset, last))
        offset = last + 1
    return log


class SharePartitionLife:
    """A share partition, its log, what its coordinator keeps, and what members know."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.config = replace(CONFIG, has_dead_letter_topic=random.random() < 0.5)
        self.log = random_log(random)
        self.end = self.log[-1].last + 1
        self.now_ms = 0
        self.kept_start = 0
        self.kept: tuple[StateBatch, ...] = ()
        self.partition = SharePartition(0)
        # Writes that are under way, each with what is true once it is answered.
        self.under_way: list[tuple[StateWrite, int, dict[int, AcknowledgeType]]] = []
        self.locks: dict[int, tuple[str, int]] = {}
        self.final: set[int] = set()
        # Acknowledged and kept, though the member was told that it failed; and delivered as often as allowed.
        self.maybe_final: set[int] = set()
        self.exhausted: set[int] = set()
        # Rejected, which was answered; accepted or a gap, which may not have been answered; and dead letters.
        self.rejected: set[int] = set()
        self.accepted: set[int] = set()
        self.dead: set[int] = set()

    # -- what happens -------------------------------------------------------------------------------

    def fetch(self, member: str) -> None:
        partition, random = self.partition, self.random
        if not partition.can_acquire(self.config):
            return
        offset = partition.next_fetch_offset()
        read = [each for each in self.log if each.last >= offset][: random.randint(1, 4)]
        limits = AcquireLimits(
            records_max=random.randint(1, 9), batch_size=random.randint(1, 5),
            is_strict=random.random() < 0.5,
        )  # fmt: skip
        acquired = partition.acquire(
            member, read, fetch_offset=offset, limits=limits, config=self.config, now_ms=self.now_ms
        )
        total = 0
        for each in acquired:
            total += each.last_offset - each.first_offset + 1
            for record in range(each.first_offset, each.last_offset + 1):
                self.deliver(record, member, each.delivery_count)
        assert not limits.is_strict or total <= limits.records_max

    def deliver(self, record: int, member: str, delivery_count: int) -> None:
        assert record not in self.final, "delivered after its acknowledgement was answered"
        lock = self.locks.get(record)
        assert lock is None or lock[1] <= self.now_ms, "locked by another member"
        kept = next((b for b in self.kept if b.first_offset <= record <= b.last_offset), None)
        assert delivery_count > (0 if kept is None else kept.delivery_count), "a count was lost"
        assert delivery_count <= CONFIG.delivery_count_limit
        self.locks[record] = (member, self.now_ms + CONFIG.lock_ms)
        if delivery_count == CONFIG.delivery_count_limit:
            self.exhausted.add(record)

    def acknowledge(self, member: str) -> None:
        own = sorted(record for record, (who, _) in self.locks.items() if who == member)
        if not own:
            return
        first = self.random.choice(own)
        last = first
        while last + 1 in own and self.random.random() < 0.7:
            last += 1
        kinds = [self.random.choice(list(AcknowledgeType)) for _ in range(last - first + 1)]
        if self.random.random() < 0.5:
            kinds = kinds[:1]
        batch = AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=kinds)
        other = self.random.choice([each for each in MEMBERS if each != member])
        if self.partition.start_offset <= first:
            with pytest.raises(KafkaError):
                self.partition.acknowledge(other, [batch], config=self.config, now_ms=self.now_ms)
        try:
            write = self.partition.acknowledge(
                member, [batch], config=self.config, now_ms=self.now_ms
            )
        except KafkaError:
            return
        said = {
            record: kinds[0] if len(kinds) == 1 else kinds[record - first]
            for record in range(first, last + 1)
        }
        for record, kind in said.items():
            if kind is AcknowledgeType.RENEW:
                self.locks[record] = (member, self.now_ms + CONFIG.lock_ms)
        self.write(write, said)

    def leave(self, member: str) -> None:
        self.write(self.partition.release(member, config=self.config), {})
        for record in [record for record, (who, _) in self.locks.items() if who == member]:
            del self.locks[record]

    def tick(self) -> None:
        self.now_ms += self.random.randint(1, 6)
        self.write(self.partition.expire(self.now_ms, config=self.config), {})

    def write(self, write: StateWrite | None, said: dict[int, AcknowledgeType]) -> None:
        if write is not None:
            self.under_way.append((write, self.partition.start_offset, said))

    def end_write(self) -> None:
        """Writes end in order; one that fails may have been kept all the same."""
        if not self.under_way:
            return
        write, start, said = self.under_way.pop(0)
        is_done = self.random.random() < 0.8
        if is_done or self.random.random() < 0.5:
            self.keep(write, start, said)
        self.partition.written(write.number, is_done=is_done)
        if is_done:
            for record, kind in said.items():
                if kind is not AcknowledgeType.RENEW:
                    self.locks.pop(record, None)
                if kind in FINAL:
                    self.final.add(record)
                if kind is AcknowledgeType.REJECT:
                    self.rejected.add(record)

    def keep(self, write: StateWrite, start: int, said: dict[int, AcknowledgeType]) -> None:
        self.maybe_final.update(record for record, kind in said.items() if kind in FINAL)
        self.accepted.update(r for r, kind in said.items() if kind in (FINAL[0], FINAL[2]))
        self.kept_start = max(self.kept_start, start)
        self.kept = combine((*self.kept, *write.batches), self.kept_start)

    def write_dead_letters(self) -> None:
        """A leader may be replaced before what it has written there is archived."""
        letters = self.partition.dead_letters(self.config)
        for each in letters:
            assert each.is_rejected or each.delivery_count == CONFIG.delivery_count_limit
            self.dead.update(range(each.first, each.last + 1))
        if letters and self.random.random() < 0.9:
            self.write(self.partition.archive_dead_letters(letters), {})

    def change_leader(self) -> None:
        """The new leader knows what the coordinator has; writes of the old one are fenced."""
        for write, start, said in self.under_way:
            if self.random.random() < 0.5:
                self.keep(write, start, said)
        self.under_way.clear()
        self.locks.clear()
        self.partition = SharePartition(self.kept_start, self.kept)

    def step(self) -> None:
        member = self.random.choice(MEMBERS)
        kind = self.random.random()
        if kind < 0.35:
            self.fetch(member)
        elif kind < 0.6:
            self.acknowledge(member)
        elif kind < 0.8:
            self.end_write()
        elif kind < 0.93:
            self.tick()
        elif kind < 0.95:
            self.leave(member)
        elif kind < 0.98:
            self.write_dead_letters()
        else:
            self.change_leader()
        self.check_runs()

    def check_runs(self) -> None:
        offset = self.partition.start_offset
        for first, last, _, _ in self.partition:
            assert first == offset and last >= first, "runs have no holes"
            offset = last + 1
        assert offset == self.partition.next_offset

    def drain(self) -> None:
        """Deliver what is left to one member who accepts everything."""
        for _ in range(2_000):
            self.now_ms += CONFIG.lock_ms + 1
            self.write(self.partition.expire(self.now_ms, config=self.config), {})
            self.write_dead_letters()
            while self.under_way:
                self.end_write()
            if self.partition.start_offset >= self.end:
                return
            self.fetch("z")
            for record in [r for r, (who, _) in self.locks.items() if who == "z"]:
                batch = AcknowledgementBatch(
                    first_offset=record, last_offset=record, acknowledge_types=[1]
                )
                self.write(
                    self.partition.acknowledge(
                        "z", [batch], config=self.config, now_ms=self.now_ms
                    ),
                    {record: AcknowledgeType.ACCEPT},
                )
        raise AssertionError(f"stuck: {list(self.partition)}")


@pytest.mark.parametrize("seed", range(0, ROUNDS, 10))
def test_random_lives(seed: int) -> None:
    for each in range(seed, seed + 10):
        life = SharePartitionLife(Random(each))
        for _ in range(STEPS):
            life.step()
        life.drain()
        records = {r for batch in life.log for r in range(batch.first, batch.last + 1)}
        assert records <= life.final | life.maybe_final | life.exhausted, "skipped"
        undeliverable = life.rejected | life.exhausted - life.accepted
        assert undeliverable <= life.dead if life.config.has_dead_letter_topic else not life.dead
