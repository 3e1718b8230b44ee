"""What is known of residue files: bounded by their batches, and gone with its topic."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.worker.delta import residue as delta_residue
from broker.worker.delta.residue import ResidueFiles
from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import open_store
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.topic.batches.residue import ResidueHeader, encode_residue
from kafka_ds.topic.names import residue_file, topic_table

TOPIC_ID = bytes(range(16))
FILES, MARKERS = 6, 10
END = FILES * MARKERS - 1


@dataclass
class Marker:
    base_offset: int
    kind: str = "control"

    @property
    def last_offset(self) -> int:
        return self.base_offset

    @property
    def data(self) -> bytes:
        return b"%04d" % self.base_offset


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Of two topics files of ten markers each, one behind the other."""
    store = open_store(str(tmp_path))
    for topic in ("pay", "pay-back"):
        for start in range(0, END, MARKERS):
            header = ResidueHeader(
                topic_id=TOPIC_ID,
                partition=0,
                start_offset=start,
                end_offset=start + MARKERS - 1,
                leader_epochs=((0, start),),
                producer_snapshot=b"",
            )
            path = f"{topic_table(topic)}/{residue_file(0, start, 'a')}"
            markers = [Marker(start + number) for number in range(MARKERS)]
            store.put_durable(path, b"".join(encode_residue(header, markers)))
    return store


def read(files: ResidueFiles, topic: str, start: int, last: int) -> list[int]:
    found = files.between(
        TopicIdPartition(TOPIC_ID, topic, 0),
        start,
        last,
        highest_offset_in_remote_storage=END,
        log_start_offset=0,
    )
    assert [each.data for each in found] == [b"%04d" % each.base_offset for each in found]
    return [each.base_offset for each in found]


def test_batches_of_open_files_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_residue, "OPEN_BATCHES_MAX", 2 * MARKERS)
    files = ResidueFiles(store)
    for start in range(0, END, MARKERS):
        assert read(files, "pay", start, start + 4) == list(range(start, start + 5))
        assert files.open_batches <= 2 * MARKERS
    assert files.open_batches == 2 * MARKERS
    # More than may stay open, in one answer.
    assert read(files, "pay", 0, END) == list(range(END + 1))
    assert files.open_batches == 2 * MARKERS


def test_one_file_of_more_than_that_is_open_while_it_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_residue, "OPEN_BATCHES_MAX", MARKERS - 1)
    files = ResidueFiles(store)
    assert read(files, "pay", 0, END) == list(range(END + 1))
    assert files.open_batches == MARKERS


def test_a_topic_that_is_gone_leaves_nothing_open(store: Store) -> None:
    files = ResidueFiles(store)
    for topic in ("pay", "pay-back"):
        read(files, topic, 0, END)
    assert files.open_batches == 2 * (END + 1)
    files.forget("pay")
    assert files.open_batches == END + 1
    assert read(files, "pay-back", 0, END) == list(range(END + 1))
    files.forget("pay-back")
    assert files.open_batches == 0


def test_a_topic_that_is_made_anew_is_listed_anew(store: Store) -> None:
    """Nobody tells a worker of another broker that the former one is gone: a replica would know no leader epochs."""
    files = ResidueFiles(store)
    assert (
        files.holding(
            TopicIdPartition(TOPIC_ID, "pay", 0), END, highest_offset_in_remote_storage=END
        )
        is not None
    )
    for entry in store.list(f"{topic_table('pay')}/_residue"):
        store.delete(entry.path)
    header = ResidueHeader(
        topic_id=bytes(reversed(TOPIC_ID)),
        partition=0,
        start_offset=0,
        end_offset=END,
        leader_epochs=((3, 0),),
        producer_snapshot=b"known",
    )
    path = f"{topic_table('pay')}/{residue_file(0, 0, 'anew')}"
    store.put_durable(path, b"".join(encode_residue(header, [])))
    found = files.holding(
        TopicIdPartition(header.topic_id, "pay", 0), END, highest_offset_in_remote_storage=END
    )
    assert found is not None
    assert found.leader_epochs == ((3, 0),)
    assert files.with_snapshot(TopicIdPartition(header.topic_id, "pay", 0), END) == found


def test_a_file_that_is_written_anew_under_its_name_is_opened_anew(store: Store) -> None:
    """As `kafka-ds erase` does: batches lie elsewhere in it then, and differ."""
    files = ResidueFiles(store)
    assert read(files, "pay", 0, 9) == list(range(10))
    header = ResidueHeader(
        topic_id=TOPIC_ID,
        partition=0,
        start_offset=0,
        end_offset=MARKERS - 1,
        leader_epochs=((0, 0),),
        producer_snapshot=b"of another length",
    )
    markers = [Marker(number) for number in range(MARKERS)]
    path = f"{topic_table('pay')}/{residue_file(0, 0, 'a')}"
    store.put_durable(path, b"".join(encode_residue(header, markers)))
    assert read(files, "pay", 0, 9) == list(range(10))


LOST, WON = "lost", "won"
OTHER = "pay-again"


def put(
    store: Store,
    attempt: str,
    start: int,
    end: int,
    epochs: tuple[tuple[int, int], ...],
    snapshot: bytes = b"",
) -> None:
    """A file of an attempt at [start, end] with a marker at each tenth offset that its last leader wrote."""
    header = ResidueHeader(
        topic_id=TOPIC_ID,
        partition=0,
        start_offset=start,
        end_offset=end,
        leader_epochs=epochs,
        producer_snapshot=snapshot,
    )
    markers = [Marker(each) for each in range(max(start, epochs[-1][1]), end + 1, 10)]
    path = f"{topic_table(OTHER)}/{residue_file(0, start, attempt)}"
    store.put_durable(path, b"".join(encode_residue(header, markers)))


@pytest.mark.parametrize("names", [(LOST, WON), (WON, LOST)])
def test_what_only_a_deposed_leader_had_is_nobodys(store: Store, names: tuple[str, str]) -> None:
    """After an unclean election: its copy of [0, 59] lost; from 5 on the next leader's records are there."""
    lost, won = names
    put(store, lost, 0, 59, ((1, 0),), b"of the lost")
    put(store, won, 0, 39, ((1, 0), (3, 5)))
    put(store, won, 40, 79, ((3, 40),), b"known")
    files = ResidueFiles(store)
    for start, last in ((0, 79), (10, 19), (20, 59), (45, 50)):
        expected = [at for at in (*range(5, 40, 10), *range(40, 80, 10)) if start <= at <= last]
        assert read(files, OTHER, start, last) == expected
    for offset, end in ((0, 39), (30, 39), (41, 79)):
        found = files.holding(
            TopicIdPartition(TOPIC_ID, OTHER, 0), offset, highest_offset_in_remote_storage=79
        )
        assert found is not None
        assert (found.end_offset, found.leader_epochs[-1][0]) == (end, 3)
    assert files.with_snapshot(TopicIdPartition(TOPIC_ID, OTHER, 0), 70) is None
    found = files.with_snapshot(TopicIdPartition(TOPIC_ID, OTHER, 0), 79)
    assert found is not None
    assert found.producer_snapshot == b"known"


def test_where_the_file_of_who_won_is_gone_the_other_serves_as_before(store: Store) -> None:
    """Attempts by leaders of one history differ in nothing else: of a log without epochs each names its own."""
    put(store, LOST, 0, 59, ((1, 0),))
    put(store, WON, 0, 39, ((3, 0),))
    assert read(ResidueFiles(store), OTHER, 0, 59) == list(range(0, 60, 10))
    assert read(ResidueFiles(store), OTHER, 45, 59) == [50]
