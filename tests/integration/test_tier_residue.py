"""What never enters the table: aborted, control, empty and undecodable batches, and how a consumer gets over them."""

from pathlib import Path

import pytest

from broker.worker.copier import Copier
from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.errors import StorageError
from broker.worker.metadata.remote_log import RemoteLogMetadataManager
from broker.worker.rpc import PartitionOutcome
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.process.system import new_uuid
from kafka_ds.records.batch import (
    HEADER_BYTES,
    ControlType,
    Record,
    build_batch,
    empty_batch,
    end_transaction_marker,
    iterate_headers,
    read_header,
    seal,
)
from kafka_ds.topic.lake import open_lake
from tests.fakes.settings import tier_settings
from tests.fakes.store import begin_lake
from tests.integration.tier_broker import table
from tests.integration.tier_segments import (
    BASE_MS,
    PARTITION,
    TOPIC,
    TOPIC_ID,
    all_records,
    cold_reads,
    copy_range,
    copy_request,
    records,
    write_segment,
)


class ResidueLake:
    def __init__(self, root: Path) -> None:
        self.path = root / "lake"
        begin_lake(self.path)
        self.root = root
        settings = tier_settings(lake_uri=str(self.path))
        store = open_lake(str(self.path), is_there=True)
        self.storage = RemoteStorageManager(store, settings, CrashPoints())
        metadata = RemoteLogMetadataManager(store, settings, CrashPoints())
        self.copier = Copier(
            self.storage, metadata, node_id=1, crash_points=CrashPoints(), new_id=new_uuid
        )

    def copy(
        self, start: int, end: int, batches: list[bytes], aborted: list[tuple[int, int, int]]
    ) -> PartitionOutcome:
        path = write_segment(self.root / f"{start}.log", batches)
        request = copy_request([copy_range(path, start, end, aborted=aborted)])
        (outcome,) = self.copier.copy(request).partitions
        return outcome

    def read(self, *, committed_only: bool, start: int = 0) -> list[bytes]:
        """All batches, as a consumer that follows its position sees them."""
        found: list[bytes] = []
        offset = start
        for chunks in cold_reads(
            self.storage, offset, max_bytes=2000, committed_only=committed_only
        ):
            for chunk in chunks:
                data = bytes(chunk)
                for _, header in iterate_headers(data):
                    assert header.next_offset > offset, "a batch that leads nowhere"
                    assert found == [] or header.base_offset <= offset
                    offset = header.next_offset
                found.append(data)
        return found


@pytest.fixture
def lake(tmp_path: Path) -> ResidueLake:
    return ResidueLake(tmp_path)


def transactional(start: int, count: int, producer: int) -> bytes:
    return build_batch(
        records(start, count),
        leader_epoch=3,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def marker(kind: ControlType, offset: int, producer: int) -> bytes:
    return end_transaction_marker(
        kind,
        offset=offset,
        timestamp=BASE_MS,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        leader_epoch=3,
    )


def offsets(batches: list[bytes]) -> list[int]:
    return [record.offset for record in all_records(batches)]


def test_where_residue_is_lost_readers_of_all_are_told_and_others_go_on(lake: ResidueLake) -> None:
    aborted = transactional(3, 4, producer=7)
    first = [build_batch(records(0, 3), leader_epoch=3), aborted, marker(ControlType.ABORT, 7, 7)]
    assert lake.copy(0, 7, first, [(7, 3, 7)]).outcome == "finished"
    second = [build_batch(records(8, 4), leader_epoch=3)]
    assert lake.copy(8, 11, second, []).outcome == "finished"
    (lost,) = (lake.path / "topics" / TOPIC / "_residue" / "partition=0").glob(f"{0:020d}-*")
    data = lost.read_bytes()
    lost.unlink()
    for _ in range(2):
        with pytest.raises(StorageError, match="orders-0: no residue file holds offset 0"):
            lake.read(committed_only=False)
        assert offsets(lake.read(committed_only=True)) == [0, 1, 2, 8, 9, 10, 11]
        assert offsets(lake.read(committed_only=False, start=8)) == [8, 9, 10, 11]
    lost.write_bytes(data)
    # It is looked for each time.
    assert aborted in lake.read(committed_only=False)
    lost.unlink()
    # What lies below the log start is nobody's to read.
    lake.storage.set_log_start(PARTITION, leader_epoch=3, offset=8)
    again = ResidueLake(lake.root)
    assert offsets(again.read(committed_only=False, start=8)) == [8, 9, 10, 11]


def test_a_shorter_attempt_that_lost_does_not_hide_the_one_that_won(lake: ResidueLake) -> None:
    """Both files begin where the reader is; only one of them reaches as far as the reader asks."""
    batches = [
        build_batch(records(0, 5), leader_epoch=3),
        build_batch(records(5, 5), leader_epoch=3),
    ]
    assert lake.copy(0, 9, batches, []).outcome == "finished"
    (won,) = Path(lake.path).rglob("*.residue")
    other = ResidueLake(lake.root / "other")
    assert other.copy(0, 4, batches[:1], []).outcome == "finished"
    (lost,) = Path(other.path).rglob("*.residue")
    for identity in ("0" * 22, "z" * 22):  # Listed before the one that won, and behind it.
        place = won.with_name(f"{won.name.partition('-')[0]}-{identity}.residue")
        place.write_bytes(lost.read_bytes())
        fresh = RemoteStorageManager(
            open_lake(str(lake.path), is_there=True), tier_settings(), CrashPoints()
        )
        read = fresh.reader.read(PARTITION, 0, max_bytes=2000, committed_only=False)
        assert offsets([bytes(chunk) for chunk in read.chunks]) == list(range(10))
        place.unlink()


def test_aborted_transactions_are_seen_by_those_who_ask_for_them(lake: ResidueLake) -> None:
    plain = build_batch(records(0, 3), leader_epoch=3)
    aborted = transactional(3, 4, producer=7)
    committed = transactional(7, 2, producer=8)
    batches = [
        plain,
        aborted,
        committed,
        marker(ControlType.ABORT, 9, 7),
        marker(ControlType.COMMIT, 10, 8),
        build_batch(records(11, 2), leader_epoch=3),
    ]
    outcome = lake.copy(0, 12, batches, [(7, 3, 9)])
    assert (outcome.outcome, outcome.rows, outcome.highest_offset_in_remote_storage) == (
        "finished",
        7,
        12,
    )
    assert table(lake.path, TOPIC)["offset"].to_list() == [0, 1, 2, 7, 8, 11, 12]
    assert offsets(lake.read(committed_only=True)) == [0, 1, 2, 7, 8, 11, 12]
    everything = lake.read(committed_only=False)
    assert offsets(everything) == list(range(13))
    assert aborted in everything
    assert marker(ControlType.ABORT, 9, 7) in everything
    # Whoever begins inside of a batch of the residue gets the whole batch.
    assert lake.read(committed_only=False, start=5)[0] == aborted


def test_a_range_without_a_row_is_got_over(lake: ResidueLake) -> None:
    lake.copy(0, 4, [transactional(0, 4, 7), marker(ControlType.ABORT, 4, 7)], [(7, 0, 4)])
    lake.copy(5, 7, [build_batch(records(5, 3), leader_epoch=3)], [])
    lake.copy(8, 9, [empty_batch(8, 9, 3)], [])
    assert offsets(lake.read(committed_only=True)) == [5, 6, 7]
    assert offsets(lake.read(committed_only=False)) == list(range(8))
    assert table(lake.path, TOPIC)["offset"].to_list() == [5, 6, 7]


def test_a_batch_that_nobody_can_read_stops_nothing(
    lake: ResidueLake, caplog: pytest.LogCaptureFixture
) -> None:
    good = [build_batch(records(start, 5), leader_epoch=3) for start in (0, 5, 10, 15)]
    broken = bytearray(good[1])
    broken[-3] ^= 0xFF
    garbled = bytearray(good[2])
    garbled[0:8] = (10**15).to_bytes(8, "big")  # the base offset, which no checksum covers
    outcome = lake.copy(0, 19, [good[0], bytes(broken), bytes(garbled), good[3]], [])
    assert (outcome.outcome, outcome.rows) == ("finished", 10)
    assert outcome.invalid_bytes >= len(broken) + len(garbled)
    expected = [*range(5), *range(15, 20)]
    assert "orders-0: Found invalid messages in offsets 5 to 9 (" in caplog.text
    assert offsets(lake.read(committed_only=True)) == expected
    assert "orders-0: offsets 5 to 9 are skipped in a read" in caplog.text
    assert offsets(lake.read(committed_only=False)) == expected
    lake.copy(20, 24, [build_batch(records(20, 5), leader_epoch=3)], [])
    assert offsets(lake.read(committed_only=False)) == [*expected, *range(20, 25)]


def test_a_batch_that_cannot_be_decoded_comes_as_it_was_produced(lake: ResidueLake) -> None:
    """As from the log: clients may get more out of it than we, and what was acknowledged is not passed over."""
    good = [build_batch(records(start, 5), leader_epoch=3) for start in (0, 5, 10, 15)]
    header = read_header(good[1])
    more = seal(header, good[1][HEADER_BYTES:] + b"what lies behind the last record")
    aborted = transactional(20, 5, producer=7)
    unread = seal(read_header(aborted), aborted[HEADER_BYTES:] + b"too")
    batches = [good[0], more, *good[2:], unread, marker(ControlType.ABORT, 25, 7)]
    outcome = lake.copy(0, 25, batches, [(7, 20, 25)])
    assert (outcome.outcome, outcome.rows) == ("finished", 15)
    lake.copy(26, 30, [build_batch(records(26, 5), leader_epoch=3)], [])
    committed = lake.read(committed_only=True)
    assert more in committed
    assert unread not in committed, "its transaction was aborted"
    others = [each for each in committed if each != more]
    assert offsets(others) == [*range(5), *range(10, 20), *range(26, 31)]
    assert lake.read(committed_only=True, start=7)[0] == more
    assert {more, unread} <= set(lake.read(committed_only=False))
    again = ResidueLake(lake.root)
    assert more in again.read(committed_only=True)
    # Where that cannot be known any more, nobody is led past it; behind it nothing is missing.
    (residue,) = (lake.path / "topics" / TOPIC / "_residue" / "partition=0").glob(f"{0:020d}-*")
    residue.unlink()
    again = ResidueLake(lake.root)
    with pytest.raises(StorageError, match="orders-0: no residue file holds offset 0"):
        again.read(committed_only=True)
    assert offsets(again.read(committed_only=True, start=10)) == [*range(10, 20), *range(26, 31)]


def test_rows_are_not_hidden_by_what_a_lost_leader_could_not_decode(lake: ResidueLake) -> None:
    good = [build_batch(records(start, 5), leader_epoch=3) for start in (0, 5, 10)]
    broken = [seal(read_header(each), each[HEADER_BYTES:] + b"more") for each in good]
    assert lake.copy(0, 14, [*good[:2], broken[2]], []).outcome == "finished"
    (residue,) = Path(lake.path).rglob("*.residue")
    other = ResidueLake(lake.root / "other")
    assert other.copy(0, 9, [good[0], broken[1]], []).outcome == "finished"
    (lost,) = Path(other.path).rglob("*.residue")
    residue.with_name(f"{0:020d}-{'z' * 22}.residue").write_bytes(lost.read_bytes())
    found = ResidueLake(lake.root).read(committed_only=True)
    assert found[-1] == broken[2]
    assert offsets(found[:-1]) == list(range(10))


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_lake_that_is_gone_is_not_said_to_have_no_such_offsets(
    lake: ResidueLake, is_mount_point: bool
) -> None:
    """By a worker that has not read the table before: a consumer would begin elsewhere."""
    lake.copy(0, 4, [build_batch(records(0, 5), leader_epoch=3)], [])
    other = ResidueLake(lake.root)
    lake.path.rename(lake.root / "elsewhere")
    why = "the folder of the lake is gone"
    if is_mount_point:
        why = "nothing of the lake is in its folder"
        lake.path.mkdir()
    with pytest.raises(OSError, match=why):
        other.read(committed_only=True)
    with pytest.raises(OSError, match=why):
        other.storage.delete_topic(TOPIC, TOPIC_ID)
    if is_mount_point:
        lake.path.rmdir()
    (lake.root / "elsewhere").rename(lake.path)
    assert offsets(other.read(committed_only=True)) == list(range(5))


def test_lost_framing_costs_the_rest_of_its_range_alone(lake: ResidueLake) -> None:
    outcome = lake.copy(0, 9, [build_batch(records(0, 5), leader_epoch=3), b"\x00" * 400], [])
    assert (outcome.outcome, outcome.rows, outcome.highest_offset_in_remote_storage) == (
        "finished",
        5,
        9,
    )
    lake.copy(10, 14, [build_batch(records(10, 5), leader_epoch=3)], [])
    assert offsets(lake.read(committed_only=False)) == [*range(5), *range(10, 15)]


def test_offsets_that_compaction_removed_stay_gaps(lake: ResidueLake) -> None:
    kept = [record for record in records(0, 30) if record.offset % 7 in (0, 3)]
    batches = [
        build_batch(kept[:5], base_offset=0, last_offset=14, leader_epoch=3),
        build_batch(kept[5:], base_offset=15, last_offset=29, leader_epoch=3),
    ]
    assert lake.copy(0, 29, batches, []).outcome == "finished"
    for committed_only in (True, False):
        found = lake.read(committed_only=committed_only)
        assert all_records(found) == kept
        assert read_header(found[-1]).last_offset == 29


def test_bad_header_keys_and_impossible_times_come_back(lake: ResidueLake) -> None:
    strange = [
        Record(0, -1, b"k", b"v", ()),
        Record(1, 2**62, b"k", b"v", ()),
        Record(2, -(2**40), b"k", None, ((b"\xff\xfe", b"1"), (b"ok", None))),
        Record(3, BASE_MS, None, b"", ((b"", b""),)),
        Record(4, 253_402_300_799_999, b"last day", b"", ()),
        Record(5, 253_402_300_800_000, b"after it", b"", ()),
    ]
    batches = [build_batch([each], leader_epoch=3) for each in strange]
    assert lake.copy(0, 5, batches, []).rows == 6
    for committed_only in (True, False):
        assert all_records(lake.read(committed_only=committed_only)) == strange
