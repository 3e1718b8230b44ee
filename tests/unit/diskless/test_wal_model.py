"""Writers and take-overs of write-ahead logs under chance: what was acknowledged is what the next leader reads.

Brokers pause, die and come back as other incarnations; puts arrive late, twice, or without an answer; leaders that do
not know that they are deposed go on; objects are erased; tables lose their ends, and may get them back. A take-over is
rare, as otherwise nothing is acknowledged. Now and then the lake is looked at as a copy with older metadata: what its
logs have of acknowledged records is what its first leader takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from broker.diskless.take_over import (
    FoundEntry,
    TakenPartition,
    WalTakeOver,
    contiguous,
    lost_offsets,
)
from broker.diskless.wal_object import (
    WalEntry,
    WalPart,
    checkpoint_number,
    checkpoint_path,
    decode_header,
    encode_checkpoint,
    encode_fence,
    object_path,
    place_of,
    wal_folder,
)
from broker.diskless.wal_writer import Checkpoint, Outcome, WalWriter
from broker.metadata.events import WalId
from kafka_ds.protocol.topic_partition import PartitionId
from tests.model_runs import examples

TOPIC = b"t" * 16
PARTITIONS = [(TOPIC, number) for number in range(3)]
NODES = 3
STEPS = 5_000
COPIED_STEPS = 50
IN_FLIGHT_MAX = 3
WORD = 8


@dataclass
class Led:
    """A partition as one broker leads it, or believes to."""

    epoch: int
    start: int = 0
    records: list[bytes] = field(default_factory=list)
    put_to: int = 0
    acked_to: int = 0
    is_recovered: bool = False
    safe_to: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.records)


@dataclass
class WalBroker:
    wal: WalId
    writer: WalWriter
    led: dict[PartitionId, Led] = field(default_factory=dict)
    paused_to: int = 0
    flying: dict[int, bytes] = field(default_factory=dict)
    """What is put and has no answer yet, by place."""
    checkpoints: int = 0


@dataclass
class Registration:
    """What the controller has of a partition."""

    node: int = -1
    epoch: int = -1
    wals: tuple[WalId, ...] = ()
    wals_since: int = 0


class WalModel:
    """A store, brokers, and a controller."""

    def __init__(self, seed: int, writer: Callable[..., WalWriter], take_over: type) -> None:
        self.random = random.Random(seed)
        # Apart, as looking changes nothing.
        self.looking = random.Random(seed)
        self.new_writer, self.new_take_over = writer, take_over
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self.now = self.words = self.take_overs = self.erased = self.refused = 0
        self.table = dict.fromkeys(PARTITIONS, 0)
        self.table_epoch = dict.fromkeys(PARTITIONS, -1)
        self.table_records: dict[PartitionId, list[bytes]] = {key: [] for key in PARTITIONS}
        self.table_lost: dict[PartitionId, list[bytes]] = {}
        """What a table had before it lost its end."""
        self.registered = {key: Registration() for key in PARTITIONS}
        self.arrived: dict[PartitionId, list[Registration]] = {key: [] for key in PARTITIONS}
        """Those that the newest metadata of a copy may have."""
        self.contradicted = 0
        self.written: dict[bytes, int] = {}
        """In which leader epoch each record was appended."""
        self.kept: dict[PartitionId, tuple[int, set[bytes]]] = {}
        """The last leader that recovered, and the earlier leaders' records that it has taken over."""
        self.acked: dict[PartitionId, dict[int, bytes]] = {key: {} for key in PARTITIONS}
        self.installed: dict[PartitionId, tuple[int, int, list[bytes]]] = {}
        self.brokers: dict[int, WalBroker] = {}
        self.epochs = 0
        self.old: list[WalBroker] = []
        self.tasks: list[Iterator[None]] = []
        for node in range(NODES):
            self.start(node)
        for key in PARTITIONS:
            self.move([key], self.random.randrange(NODES))

    def run(self) -> None:
        for self.now in range(STEPS):
            self.step()
            if not self.now % COPIED_STEPS:
                self.promote(self.looking.choice(PARTITIONS))

    def step(self) -> None:
        chance = self.random.random()
        broker = self.random.choice([*self.brokers.values(), *self.old[-2:]])
        if chance < 0.003:
            self.move(self.random.sample(PARTITIONS, self.random.choice((1, 1, 2, 3))), None)
        elif chance < 0.004:
            self.kill(self.random.randrange(NODES))
        elif chance < 0.008:
            broker.paused_to = self.now + self.random.randrange(150)
        elif chance < 0.01 and self.tasks:
            self.tasks.pop(self.random.randrange(len(self.tasks)))  # It is tried again below.
        elif chance < 0.0103:
            self.lose_table(self.random.choice(PARTITIONS))
        elif self.table_lost and chance < 0.014:
            self.bring_table_back(self.random.choice(list(self.table_lost)))
        elif 0.0103 <= chance < 0.0133:
            self.take_over(self.random.choice(list(self.brokers.values())))
        elif chance < 0.03 and self.late:
            path, data = self.late.pop(self.random.randrange(len(self.late)))
            self.objects.setdefault(path, data)
        elif chance < 0.4 and self.tasks:
            task = self.random.choice(self.tasks)
            if next(task, self) is self:
                self.tasks.remove(task)
        elif broker.paused_to <= self.now:
            self.random.choice(
                (
                    self.append,
                    self.turn,
                    self.turn,
                    self.answer,
                    self.answer,
                    self.answer,
                    self.copy,
                    self.clean,
                )
            )(broker)

    # -- brokers --------------------------------------------------------------------------------

    def start(self, node: int) -> None:
        self.epochs += 1
        wal = WalId(node, self.epochs)
        self.brokers[node] = WalBroker(wal, self.new_writer(lambda: self.random.randbytes(16)))

    def kill(self, node: int) -> None:
        """It dies, or only its session does: then it goes on for a while in the old epoch."""
        broker = self.brokers[node]
        if self.random.random() < 0.5:
            self.old.append(broker)
        for place, data in broker.flying.items():
            self.late.append((object_path(broker.wal, place), data))
        self.start(node)
        moved = [key for key, each in self.registered.items() if each.node == node]
        if moved:
            self.move(moved, None)

    def append(self, broker: WalBroker) -> None:
        for key, led in broker.led.items():
            if led.is_recovered and not broker.writer.is_fenced(key, led.epoch):
                for _ in range(self.random.randrange(3)):
                    self.words += 1
                    led.records.append(self.words.to_bytes(WORD, "big"))
                    self.written[led.records[-1]] = led.epoch

    def turn(self, broker: WalBroker) -> None:
        if broker.writer.in_flight >= IN_FLIGHT_MAX:
            return
        parts = []
        for key, led in broker.led.items():
            if led.end > led.put_to and self.random.random() < 0.8:
                to = self.random.randint(led.put_to + 1, led.end)
                data = b"".join(led.records[led.put_to - led.start : to - led.start])
                parts.append(WalPart(*key, led.epoch, led.put_to, to - 1, data))
                led.put_to = to
        if parts:
            self.learn(broker, broker.writer.put(parts))

    def learn(self, broker: WalBroker, outcome: Outcome) -> None:
        for put in outcome.puts:
            broker.flying[put.place] = put.data
        for part in outcome.acknowledged:
            self.acknowledged(broker, part)

    def acknowledged(self, broker: WalBroker, part: WalPart) -> None:
        led = broker.led.get(part.key)
        if led is None or led.epoch != part.leader_epoch:
            return
        if part.last_offset < led.acked_to:
            return  # An earlier attempt of the same take-over had it acknowledged.
        if part.first_offset > led.acked_to:
            assert not led.is_recovered, "in order, without a gap"
            return
        led.acked_to = part.last_offset + 1
        led.put_to = max(led.put_to, led.acked_to)
        if not led.is_recovered:
            return self.recovered(broker, part.key, led)
        self.count(part.key, led.epoch, part.first_offset, part.data)

    def count(self, key: PartitionId, epoch: int, first: int, data: bytes) -> None:
        for index in range(len(data) // WORD):
            offset, word = first + index, data[index * WORD : (index + 1) * WORD]
            assert self.acked[key].setdefault(offset, word) == word, "an offset with two contents"
            later = self.installed.get(key)
            if later is not None and later[0] > epoch and offset >= later[1]:
                assert offset - later[1] < len(later[2]), "acknowledged behind a new leader's back"
                assert later[2][offset - later[1]] == word

    def answer(self, broker: WalBroker) -> None:
        """A put arrives, or not, and is answered, or not."""
        if not broker.flying:
            return
        place = self.random.choice(list(broker.flying))
        data, path = broker.flying[place], object_path(broker.wal, place)
        how = self.random.random()
        if how < 0.1:
            self.late.append((path, data))
            return
        is_new = path not in self.objects
        self.objects.setdefault(path, data)
        if how < 0.3:
            return
        del broker.flying[place]
        if is_new:
            self.learn(broker, broker.writer.created(place))
        else:
            self.learn(broker, broker.writer.exists(place, decode_header(self.objects[path])))

    # -- the table, and cleaning up -----------------------------------------------------------------

    def copy(self, broker: WalBroker) -> None:
        for key, led in broker.led.items():
            if (
                not led.is_recovered
                or led.epoch < self.table_epoch[key]
                or self.random.random() < 0.7
            ):
                continue
            if self.table[key] < led.start:
                continue
            copied = led.records[self.table[key] - led.start : led.acked_to - led.start]
            self.table_records[key] += copied
            self.table[key] += len(copied)
            led.safe_to = self.table[key]

    def clean(self, broker: WalBroker) -> None:
        def is_safe(key: PartitionId, last_offset: int) -> bool:
            led = broker.led.get(key)
            if led is not None and led.is_recovered and last_offset < led.safe_to:
                return True
            return broker.wal not in self.registered[key].wals

        writer = broker.writer
        writer.forget_table_ends(is_safe)
        places = writer.begin_clean_up(writer.places(), is_safe)
        if not self.checkpoint(broker):
            return
        for place in places:
            self.objects.pop(object_path(broker.wal, place), None)
        broker.writer.erased(places)
        self.erased += len(places)

    def checkpoint(self, broker: WalBroker) -> bool:
        """Whether it is in the store, if one is due."""
        writer = broker.writer
        if not writer.is_checkpoint_due:
            return True
        made, number = writer.checkpoint(), broker.checkpoints
        broker.checkpoints += 1
        path = checkpoint_path(broker.wal, number)
        if self.random.random() < 0.2:
            writer.not_checkpointed()
            self.late.append((path, made.data))
            return False
        self.objects[path] = made.data
        writer.checkpointed(made)
        for old in range(number - 1):
            self.objects.pop(checkpoint_path(broker.wal, old), None)
        return True

    def lose_table(self, key: PartitionId) -> None:
        """Another writer overwrites commits, or a backup is taken for the table."""
        if key not in self.table_lost and self.table[key]:
            self.table_lost[key] = self.table_records[key]
            self.table[key] = self.random.randrange(self.table[key])
            self.table_records[key] = self.table_records[key][: self.table[key]]

    def bring_table_back(self, key: PartitionId) -> None:
        """Unless what it had was copied again."""
        before = self.table_lost.pop(key)
        if len(before) > self.table[key]:
            self.table[key], self.table_records[key] = len(before), before

    # -- leaders ------------------------------------------------------------------------------------

    def move(self, keys: list[PartitionId], node: int | None) -> None:
        """The controller gives partitions to a broker, which begins at once, or whenever it looks."""
        target = self.random.randrange(NODES) if node is None else node
        wal = self.brokers[target].wal
        for key in keys:
            before = self.registered[key]
            wals = (*(each for each in before.wals if each != wal), wal)
            self.registered[key] = Registration(target, before.epoch + 1, wals, before.wals_since)
        self.take_over(self.brokers[target])

    def take_over(self, broker: WalBroker) -> None:
        """A broker looks at what it leads, and forgets what it does not lead any more."""
        if self.brokers.get(broker.wal.node_id) is not broker:
            return
        keys = {}
        for key, each in self.registered.items():
            led = broker.led.get(key)
            if each.node != broker.wal.node_id:
                broker.led.pop(key, None)
            elif led is not None and led.epoch == each.epoch and led.acked_to == led.end:
                if not led.is_recovered:
                    self.recovered(broker, key, led)
            elif led is None or led.epoch != each.epoch or not led.is_recovered:
                keys[key] = each.epoch
                broker.led.pop(key, None)
        if keys:
            self.tasks.append(self.taking_over(broker, keys))

    def taking_over(self, broker: WalBroker, keys: dict[PartitionId, int]) -> Iterator[None]:
        for key, epoch in keys.items():
            self.table_epoch[key] = max(epoch, self.table_epoch[key])
        starts = {key: self.table[key] for key in keys}
        found: dict[PartitionId, list[FoundEntry]] = {key: [] for key in keys}
        ends = {key: broker.writer.table_end(key) for key in keys}
        for wal in {wal for key in keys for wal in self.registered[key].wals}:
            wanted = {
                key: TakenPartition(epoch, self.registered[key].wals_since)
                for key, epoch in keys.items()
                if wal in self.registered[key].wals
            }
            if wal == broker.wal:
                wanted = {key: e for key, e in wanted.items() if broker.writer.knows(key)}
            if not wanted:
                continue
            machine = self.new_take_over(wal, wanted)
            while not (yield from self.reading(machine)):
                yield
                machine = self.new_take_over(wal, wanted)
            for key, entries in machine.found().entries.items():
                found[key] += entries
            for key, end in machine.found().table_ends.items():
                ends[key] = max(end, ends[key])
        yield
        for key, epoch in keys.items():
            led = broker.led.get(key)
            if led is not None and led.epoch == epoch and led.is_recovered:
                continue  # By an earlier attempt.
            if self.registered[key].epoch == epoch and broker.paused_to <= self.now:
                self.install(broker, key, epoch, starts[key], found[key], ends[key])

    def reading(self, machine: WalTakeOver) -> Iterator[None]:
        """One attempt to fence and read a log; whether nothing was erased meanwhile."""
        if not (yield from self.listing(machine)):
            return False
        while (fence := machine.next_fence()) is not None:
            # The log's writer may go on for long, and clean up behind it.
            for _ in range(self.random.choice((0, 0, 0, 100))):
                yield
            place, fenced = fence
            path, data = (
                object_path(machine.wal, place),
                encode_fence(self.random.randbytes(16), fenced),
            )
            found = decode_header(self.objects.setdefault(path, data))
            machine.put(place, found, is_ours=found == decode_header(data))
            yield
            if not (yield from self.listing(machine)):
                return False
        return True

    def listing(self, machine: WalTakeOver) -> Iterator[None]:
        folder, known = f"{wal_folder(machine.wal)}/", machine.known_to
        start_after = object_path(machine.wal, known - 1) if known else ""
        paths = sorted(p for p in self.objects if p.startswith(folder) and p > start_after)
        for path in paths:
            place = place_of(path)
            if place is None:
                number = checkpoint_number(path)
                assert number is not None
                yield
                if path in self.objects:
                    machine.read_checkpoint(number, decode_header(self.objects[path]))
                elif path == paths[-1]:
                    return False
                continue
            if place in machine.headers:
                continue
            yield
            if path not in self.objects:
                return False
            machine.read(place, decode_header(self.objects[path]))
        return True

    def install(
        self,
        broker: WalBroker,
        key: PartitionId,
        epoch: int,
        start: int,
        found: list[FoundEntry],
        table_end: int,
    ) -> None:
        led = Led(epoch, start, put_to=start, acked_to=start, safe_to=start)
        plan = self.contiguous(found, start)
        if self.is_refused(plan, start, table_end):
            self.refused += 1
            return
        broker.writer.table_has(key, start - 1)
        for each in plan:
            path = object_path(each.wal, each.place)
            entry = each.entry
            data = self.objects[path][entry.position : entry.position + entry.length]
            words = [data[i : i + WORD] for i in range(0, len(data), WORD)]
            assert len(words) == entry.last_offset - entry.first_offset + 1
            led.records += words[led.end - entry.first_offset :]
        # Whatever has become of it since it was asked.
        table = max(self.table_lost.get(key, []), self.table_records[key], key=len)
        for offset, word in self.acked[key].items():
            if offset < start:
                assert table[offset] == word
            else:
                assert offset < led.end, "an acknowledged record is missing"
                assert led.records[offset - start] == word, "an acknowledged record is another"
        since, kept = self.kept.get(key, (-1, set[bytes]()))
        for word in led.records:
            assert self.written[word] >= since or word in kept, "what was left out comes back"
        self.installed[key] = (epoch, start, list(led.records))
        broker.led[key] = led
        self.take_overs += 1
        if not led.records:
            self.recovered(broker, key, led)

    # -- copies of the lake -------------------------------------------------------------------------

    def promote(self, key: PartitionId) -> None:
        """All objects and the table have arrived in a copy, and the metadata of some changes of leader have not.

        Its leader takes acknowledged records, up to the first one that the logs that it knows do not have.
        """
        known = self.arrived[key]
        if not known or known[-1] != self.registered[key]:
            known.append(self.registered[key])
        registration = self.looking.choice(known[-4:])
        there: dict[int, set[bytes]] = {}
        for each in self.copied(WalTakeOver, key, registration):
            for offset, word in self.words_of(each):
                there.setdefault(offset, set()).add(word)
        start, taken = self.table[key], dict[int, bytes]()
        found = self.copied(self.new_take_over, key, registration)
        for each in self.contiguous(found, start):
            for offset, word in self.words_of(each):
                taken.setdefault(offset, word)
        acked, offset = self.acked[key], start
        while offset in acked and acked[offset] in there.get(offset, ()):
            assert taken.get(offset) == acked[offset], "a copy's leader takes another record"
            self.contradicted += len(there[offset]) > 1
            offset += 1

    def contiguous(self, found: list[FoundEntry], start: int) -> list[FoundEntry]:
        return contiguous(found, start)

    def copied(self, made: type, key: PartitionId, registration: Registration) -> list[FoundEntry]:
        taken = TakenPartition(registration.epoch + 1, registration.wals_since)
        found: list[FoundEntry] = []
        for wal in registration.wals:
            machine, folder = made(wal, {key: taken}), f"{wal_folder(wal)}/"
            for path in [each for each in self.objects if each.startswith(folder)]:
                if (place := place_of(path)) is not None:
                    machine.read(place, decode_header(self.objects[path]))
            found += machine.counting()[key]
        return found

    def words_of(self, found: FoundEntry) -> Iterator[tuple[int, bytes]]:
        data, entry = self.objects[object_path(found.wal, found.place)], found.entry
        for offset in range(entry.first_offset, entry.last_offset + 1):
            at = entry.position + (offset - entry.first_offset) * WORD
            yield offset, data[at : at + WORD]

    def is_refused(self, plan: list[FoundEntry], start: int, table_end: int) -> bool:
        return lost_offsets(plan, start, table_end) is not None

    def recovered(self, broker: WalBroker, key: PartitionId, led: Led) -> None:
        if led.acked_to < led.end:
            return
        registration = self.registered[key]
        if registration.epoch != led.epoch:
            return
        if not self.checkpoint(broker):
            return  # It is tried again.
        led.is_recovered = True
        self.registered[key] = Registration(registration.node, led.epoch, (broker.wal,), led.epoch)
        data = b"".join(led.records)
        self.count(key, led.epoch, led.start, data)
        self.kept[key] = led.epoch, {*led.records, *self.acked[key].values()}


def run(
    seeds: range, writer: type = WalWriter, take_over: type = WalTakeOver, made: type = WalModel
) -> list[WalModel]:
    models = [made(seed, writer, take_over) for seed in seeds]
    for model in models:
        model.run()
    return models


def test_what_was_acknowledged_is_what_the_next_leader_reads() -> None:
    models = run(range(examples(30)))
    assert sum(model.take_overs for model in models) > 5 * len(models)
    assert sum(len(acked) for model in models for acked in model.acked.values()) > 100 * len(models)
    assert sum(model.erased for model in models) > 50 * len(models)
    assert sum(model.refused for model in models) > len(models) // 4


class AcknowledgesOutOfOrder(WalWriter):
    """An object counts once it is there, whatever is missing before it."""

    def _acknowledge(self) -> Outcome:
        order = sorted(self._bundles, key=lambda bundle: not bundle.is_there)
        self._bundles.clear()
        self._bundles.extend(order)
        return super()._acknowledge()

    def _counts(self, bundle: Any) -> bool:
        return bundle.is_there


class AcknowledgesBeforePlacesAreDecided(WalWriter):
    """What has moved behind a fence counts while places before it are empty."""

    def _counts(self, bundle: Any) -> bool:
        return bundle.is_there


class RecoversBeforeThePut(WalModel):
    def install(self, broker: WalBroker, key: PartitionId, *found: Any) -> None:
        super().install(broker, key, *found)
        if key not in broker.led:
            return
        self.recovered(broker, key, replace(broker.led[key], acked_to=broker.led[key].end))


class AcknowledgesWhatIsFenced(WalWriter):
    def is_fenced(self, key: PartitionId, leader_epoch: int) -> bool:
        return False


class ErasesTheNewest(WalWriter):
    """A checkpoint does not say where the log ended."""

    def checkpoint(self) -> Checkpoint:
        made = super().checkpoint()
        return Checkpoint(made.acked_to, encode_checkpoint(bytes(16), 0, self._table_ends))


class ForgetsWhatTheTableHas(WalWriter):
    """A checkpoint does not say what was erased."""

    def checkpoint(self) -> Checkpoint:
        made = super().checkpoint()
        return Checkpoint(made.acked_to, encode_checkpoint(bytes(16), made.acked_to, {}))


class ForgetsWhatTheTableHadBefore(WalWriter):
    """A checkpoint says what was erased here, but not what earlier leaders had erased."""

    def table_has(self, key: PartitionId, last_offset: int) -> None:
        if self.knows(key):
            super().table_has(key, last_offset)


class BelievesTheTable(WalModel):
    """Whatever is missing behind its end was never acknowledged."""

    def is_refused(self, plan: list[FoundEntry], start: int, table_end: int) -> bool:
        return False


class TakesTheLongest(WalModel):
    """Of entries that overlap any may be taken."""

    def contiguous(self, found: list[FoundEntry], start: int) -> list[FoundEntry]:
        return contiguous(
            [each._replace(entry=each.entry._replace(leader_epoch=0)) for each in found], start
        )


class CutsWhereALaterLeaderBegins(WalModel):
    """An entry has nothing from where one of a later leader begins, which may have put only a part again."""

    def contiguous(self, found: list[FoundEntry], start: int) -> list[FoundEntry]:
        def is_cut(entry: WalEntry) -> bool:
            return any(
                each.entry.leader_epoch > entry.leader_epoch
                and each.entry.first_offset <= entry.first_offset <= each.entry.last_offset
                for each in found
            )

        return contiguous([each for each in found if not is_cut(each.entry)], start)


class CountsNothingBehindAFence(WalTakeOver):
    """A later leader's fence ends an earlier one's entries, also where an erased object was."""

    def counting(self) -> dict[PartitionId, list[FoundEntry]]:
        def is_behind(found: FoundEntry) -> bool:
            return any(
                place < found.place
                and each.is_fence
                and each.key == found.entry.key
                and each.leader_epoch > found.entry.leader_epoch
                for place, header in self.headers.items()
                for each in header.entries
            )

        counting = super().counting().items()
        return {key: [each for each in some if not is_behind(each)] for key, some in counting}


class NeverFences(WalTakeOver):
    def next_fence(self) -> None:
        return None


class FencesBehindTheLast(WalTakeOver):
    """Holes stay open."""

    def next_fence(self) -> Any:
        fence = super().next_fence()
        last = max(self.headers, default=-1)
        is_fenced = any(
            e.is_fence and e.leader_epoch >= self.partitions[e.key].leader_epoch
            for e in (self.headers[last].entries if self.headers else ())
            if e.key in self.partitions
        )
        return None if fence is None or is_fenced else (last + 1, fence[1])


class FencesWhereSomethingWasErased(WalTakeOver):
    """One fence is enough, wherever the log's writer is by then."""

    def put(self, place: int, header: Any, *, is_ours: bool) -> None:
        super().put(place, header, is_ours=is_ours)
        self.is_fenced = is_ours

    def next_fence(self) -> Any:
        return None if getattr(self, "is_fenced", False) else super().next_fence()


class CountsWhatWasLeftBehindAGap(WalTakeOver):
    """Entries of leaders before the last one that recovered count."""

    def counting(self) -> dict[PartitionId, list[FoundEntry]]:
        self.partitions = {
            key: each._replace(wals_since=0) for key, each in self.partitions.items()
        }
        return super().counting()


@pytest.mark.parametrize(
    "left_out",
    [
        {"writer": AcknowledgesOutOfOrder},
        {"writer": AcknowledgesBeforePlacesAreDecided},
        {"writer": AcknowledgesWhatIsFenced},
        {"writer": ErasesTheNewest},
        {"writer": ForgetsWhatTheTableHas},
        {"writer": ForgetsWhatTheTableHadBefore},
        {"take_over": NeverFences},
        {"take_over": FencesBehindTheLast},
        {"take_over": FencesWhereSomethingWasErased},
        {"take_over": CountsWhatWasLeftBehindAGap},
        {"take_over": CountsNothingBehindAFence},
        {"made": RecoversBeforeThePut},
        {"made": BelievesTheTable},
        {"made": TakesTheLongest},
        {"made": CutsWhereALaterLeaderBegins},
    ],
)
def test_the_model_finds_what_is_left_out(left_out: dict[str, type]) -> None:
    for seed in range(300):
        try:
            run(range(seed, seed + 1), **left_out)
        except (AssertionError, KeyError):
            return
    pytest.fail("nothing was lost")
