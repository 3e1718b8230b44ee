"""An object of a write-ahead log as bytes, and damage to it; which of a log's entries count."""

import pytest

from broker.diskless.take_over import (
    FoundEntry,
    TakenPartition,
    WalTakeOver,
    contiguous,
    lost_offsets,
)
from broker.diskless.wal_object import (
    CorruptWalObject,
    WalEntry,
    WalHeader,
    WalPart,
    checkpoint_number,
    checkpoint_path,
    decode_header,
    encode,
    encode_checkpoint,
    encode_fence,
    header_size,
    object_path,
    place_of,
)
from broker.metadata.events import WalId

TOPIC, OTHER = b"t" * 16, b"o" * 16
P, Q = (TOPIC, 3), (OTHER, 0)
ID, WAL = b"i" * 16, WalId(2, 17)
PARTS = (WalPart(TOPIC, 3, 5, 10, 12, b"abc"), WalPart(OTHER, 0, 6, 0, 1 << 40, b"defgh"))


def test_an_object_has_what_was_put_into_it() -> None:
    data = encode(ID, 7, PARTS)
    header = decode_header(data[: header_size(data)])
    assert (header.object_id, header.acked_to) == (ID, 7)
    for part, entry in zip(PARTS, header.entries, strict=True):
        assert entry[:5] == part[:5]
        assert not entry.is_fence
        assert data[entry.position : entry.position + entry.length] == part.data


def test_a_fence_has_no_bodies() -> None:
    data = encode_fence(ID, [(P, 9), (Q, 4)])
    assert header_size(data) == len(data)
    header = decode_header(data)
    assert [(each.key, each.leader_epoch) for each in header.entries] == [(P, 9), (Q, 4)]
    assert all(each.is_fence for each in header.entries)
    assert header.acked_to == 0


@pytest.mark.parametrize("at", range(len(encode_fence(ID, [(P, 9)]))))
def test_each_damaged_byte_of_a_header_is_noticed(at: int) -> None:
    data = bytearray(encode_fence(ID, [(P, 9)]))
    data[at] ^= 0xFF
    with pytest.raises(CorruptWalObject):
        decode_header(bytes(data))


def test_a_torn_header_is_noticed() -> None:
    data = encode(ID, 7, PARTS)
    for end in range(header_size(data)):
        with pytest.raises(CorruptWalObject):
            decode_header(data[:end])


def test_a_place_is_in_the_path() -> None:
    path = object_path(WAL, 42)
    assert path == "wal/2/17/00000000000000000042.wal"
    assert place_of(path) == 42
    assert place_of(f"{path}.tmp") is None


def test_a_checkpoint_has_what_the_table_has() -> None:
    header = decode_header(encode_checkpoint(ID, 7, {P: 12, Q: 1 << 40}))
    assert header.acked_to == 7
    assert {each.key: each.last_offset for each in header.entries} == {P: 12, Q: 1 << 40}
    path = checkpoint_path(WAL, 42)
    assert (checkpoint_number(path), place_of(path)) == (42, None)
    assert checkpoint_number(object_path(WAL, 42)) is None
    assert path > object_path(WAL, 10**20 - 1), "each listing shows it"


def entry(first: int, last: int, *, epoch: int = 5) -> WalEntry:
    return WalEntry(*P, epoch, first, last, 100, 10)


def fence(epoch: int) -> WalEntry:
    return WalEntry(*P, epoch)


def taken(*objects: WalEntry, acked_to: int = 0, epoch: int = 9, since: int = 0) -> WalTakeOver:
    """A log with one entry an object."""
    machine = WalTakeOver(WAL, {P: TakenPartition(epoch, since)})
    for place, each in enumerate(objects):
        machine.read(place, WalHeader(ID, acked_to, (each,)))
    return machine


def test_the_end_of_a_log_that_is_all_erased_is_known_by_its_checkpoint() -> None:
    machine = taken()
    machine.read_checkpoint(4, decode_header(encode_checkpoint(ID, 7, {P: 12, Q: 3})))
    assert machine.next_fence() == (7, ((P, 9),))
    machine.put(7, WalHeader(ID, 0, (fence(9),)), is_ours=True)
    assert machine.next_fence() is None
    assert machine.found() == ({P: []}, {P: 12})


def counted(machine: WalTakeOver) -> list[int]:
    return [each.entry.first_offset for each in machine.counting()[P]]


def test_the_fence_goes_to_the_first_place_that_may_be_written() -> None:
    assert taken().next_fence() == (0, ((P, 9),))
    machine = taken(entry(0, 1), entry(2, 3))
    assert machine.next_fence() == (2, ((P, 9),))
    machine.read(2, WalHeader(ID, 0, (entry(4, 5),)))
    assert machine.next_fence() == (3, ((P, 9),)), "another object was quicker"
    machine.read(3, WalHeader(ID, 0, (fence(9),)))
    assert machine.next_fence() is None
    assert counted(machine) == [0, 2, 4]


def test_a_hole_is_fenced_unless_it_was_erased() -> None:
    machine = taken(entry(0, 1))
    machine.read(4, WalHeader(ID, 3, (entry(8, 9),)))
    assert machine.next_fence() == (3, ((P, 9),))
    machine.put(3, WalHeader(ID, 0, (fence(9),)), is_ours=True)
    assert machine.next_fence() is None


def test_a_fence_at_a_place_that_was_decided_before_is_followed_by_another() -> None:
    machine = taken(entry(0, 1))
    assert machine.next_fence() == (1, ((P, 9),))
    machine.put(1, WalHeader(ID, 0, (fence(9),)), is_ours=True)
    assert machine.known_to == 1
    # What was there was erased while this leader was slow; the writer is far ahead.
    machine.read(50, WalHeader(ID, 48, (entry(2, 3),)))
    assert machine.next_fence() == (48, ((P, 9),))
    machine.put(48, WalHeader(ID, 0, (fence(9),)), is_ours=True)
    assert machine.next_fence() is None
    assert counted(machine) == [0, 2]


def test_a_busy_writer_is_met_further_ahead() -> None:
    machine, other = taken(entry(0, 1)), WalHeader(ID, 0, (entry(2, 3),))
    assert machine.next_fence() == (1, ((P, 9),))
    machine.put(1, other, is_ours=False)
    assert machine.next_fence() == (3, ((P, 9),))
    machine.put(3, other, is_ours=False)
    machine.read(2, other)
    assert machine.next_fence() == (6, ((P, 9),))
    assert machine.known_to == 4
    machine.put(6, WalHeader(ID, 0, (fence(9),)), is_ours=True)
    assert machine.next_fence() == (4, ((P, 9),)), "unless the writer fills it, it must be fenced"
    machine.read(4, other)
    machine.read(5, other)
    assert machine.next_fence() is None


def test_an_earlier_fence_of_this_leader_or_a_later_one_is_used_again() -> None:
    assert taken(entry(0, 1), fence(9)).next_fence() is None
    assert taken(entry(0, 1), fence(10)).next_fence() is None
    assert taken(entry(0, 1), fence(8)).next_fence() == (2, ((P, 9),))
    passed = taken(entry(0, 1), fence(9), acked_to=2)
    assert passed.next_fence() == (2, ((P, 9),)), "it may have come too late"


def test_entries_of_forgotten_epochs_do_not_count() -> None:
    machine = taken(entry(0, 1), entry(2, 3, epoch=6), fence(9), since=6)
    assert counted(machine) == [2]


def chosen(start: int, *spans: tuple[int, int]) -> list[tuple[int, int]]:
    found = [FoundEntry(WAL, place, entry(*span)) for place, span in enumerate(spans)]
    return [(each.entry.first_offset, each.entry.last_offset) for each in contiguous(found, start)]


def test_what_is_contiguous_is_taken_and_no_more_than_needed() -> None:
    assert chosen(0, (2, 3), (0, 1), (6, 7)) == [(0, 1), (2, 3)]
    assert chosen(2, (0, 1), (2, 3)) == [(2, 3)]
    assert chosen(1, (0, 3), (2, 3), (4, 4)) == [(0, 3), (4, 4)]
    assert chosen(0, (0, 1), (0, 5), (2, 3), (4, 5), (6, 6)) == [(0, 5), (6, 6)]
    assert chosen(0, (0, 1), (1, 2), (2, 9)) == [(0, 1), (2, 9)]
    assert chosen(5, (0, 3), (6, 7)) == []
    assert chosen(0) == []


@pytest.mark.parametrize(
    ("start", "spans", "lost"),
    [
        (5, [], None),
        (3, [], (3, 4)),
        (3, [(3, 3)], (4, 4)),
        (3, [(2, 4)], None),
        (3, [(3, 3), (4, 9)], None),
    ],
)
def test_a_table_that_ends_before_its_checkpoint_has_lost_what_no_entry_has(
    start: int, spans: list[tuple[int, int]], lost: tuple[int, int] | None
) -> None:
    plan = [FoundEntry(WAL, place, entry(*span)) for place, span in enumerate(spans)]
    assert lost_offsets(plan, start, table_end=4) == lost
