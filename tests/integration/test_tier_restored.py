"""RESTORE of a topic's table as consumers of old offsets meet it: SQL's rows, or an error, never a silent gap."""

from collections.abc import Callable, Iterator
from pathlib import Path

import deltalake
import pytest

from broker.worker.delta.storage import RemoteStorageManager
from broker.worker.errors import StorageError
from broker.worker.maintenance import TableMaintenance
from kafka_ds.delta.log import SystemLogClock
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.topic.lake import open_lake
from kafka_ds.topic.recovery import add_back, give_up
from tests.integration.filled_lake import fill, optimize, storage_of
from tests.integration.lake_bench import LakeBench
from tests.integration.tier_segments import (
    PARTITION,
    TOPIC,
    all_records,
    cold_reads,
    next_offset,
    records,
)

END = 40


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeBench]:
    """Ten offsets in each of versions 1 to 4."""
    made = LakeBench("delta", tmp_path)
    for start in range(0, END, 10):
        fill(made, start)
    yield made


def table(lake: LakeBench) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(lake.root / "lake" / "topics" / TOPIC)


def by_sql(lake: LakeBench) -> list[int]:
    rows = table(lake).to_pyarrow_table(columns=["offset"])
    return sorted(rows["offset"].to_pylist())


def consumed(storage: RemoteStorageManager, offset: int = 0) -> list[int]:
    """By a consumer that reads on from where it came to."""
    reads = cold_reads(storage, offset, max_bytes=300)
    return [each.offset for chunks in reads for each in all_records(chunks)]


@pytest.mark.parametrize("erased", [range(10), range(4, 16), range(10, 20), range(30, 40)])
def test_a_mistaken_delete_is_undone_for_consumers_as_well(lake: LakeBench, erased: range) -> None:
    """Also for one that had read over the gap: what was prepared for it is not the answer any more."""
    storage = storage_of(lake)
    table(lake).delete(f'"offset" >= {erased.start} AND "offset" < {erased.stop}')
    left = [each for each in range(END) if each not in erased]
    optimize(storage)  # Follows the table at once.
    assert consumed(storage) == by_sql(lake) == left
    table(lake).restore(4)
    optimize(storage)
    assert consumed(storage) == by_sql(lake) == list(range(END))
    assert storage.complaints() == 0


def test_a_consumer_gets_an_error_where_a_restore_took_records_away(
    lake: LakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    storage = storage_of(lake)
    assert consumed(storage) == list(range(END))
    table(lake).restore(2)
    fill(lake, END)
    caplog.clear()  # Its own worker has told.
    assert optimize(storage).missing_offsets == 20
    (said,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert said.startswith(
        f"{TOPIC}-0: version 5 of the table (RESTORE) removed 20 tiered offsets: 20 to 39;"
    )
    for offset in (20, 29, 39):
        with pytest.raises(StorageError, match="removed offsets 20 to 39 from the table"):
            storage.reader.read(PARTITION, offset, max_bytes=300, committed_only=True)
    position = 0
    with pytest.raises(StorageError, match="removed offsets 20 to 39"):
        for chunks in cold_reads(storage, max_bytes=300):
            position = next_offset(chunks)
    assert position == 20, "nobody is led over them"
    assert consumed(storage, END) == list(range(END, END + 10))
    assert storage.state(PARTITION).highest_offset_in_remote_storage == END + 9, (
        "no offset is used twice"
    )


Settle = Callable[[str, str], object]


@pytest.mark.parametrize(("settle", "there"), [(add_back, range(50)), (give_up, None)])
@pytest.mark.parametrize("noted", [False, True])
def test_somebody_decides_what_becomes_of_them(
    lake: LakeBench,
    settle: Settle,
    there: range | None,
    noted: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = storage_of(lake)
    table(lake).restore(2)
    optimize(storage)
    if noted:
        store = open_lake(lake.settings.lake_uri, is_there=True)
        storage.maintain(
            TOPIC, TableMaintenance(store, CrashPoints(), SystemLogClock(), interval=100)
        )
        table(lake).create_checkpoint()
        storage = storage_of(lake)
        assert optimize(storage).missing_offsets == 20
    fill(lake, END)
    settle(str(lake.root / "lake"), TOPIC)
    assert optimize(storage).missing_offsets == 0
    wanted = list(there) if there else [*range(20), *range(END, END + 10)]
    assert consumed(storage) == consumed(storage_of(lake)) == by_sql(lake) == wanted
    assert "no tiered offsets are missing any more" in caplog.text
    assert len(lake.records()) == len(wanted) and lake.records()[:20] == records(0, 20)


def test_a_leader_keeps_what_a_restore_took_out_until_somebody_decides(lake: LakeBench) -> None:
    """It stands for missing data: no local segment of these offsets goes."""
    storage = storage_of(lake)
    table(lake).restore(2)
    look = storage.check.look(PARTITION, 25, [])
    assert [(each.start_offset, each.end_offset) for each in look.missing] == [(25, 39)]
    storage.check.repair(PARTITION, leader_epoch=3, look=look, sources={})
    assert by_sql(lake) == list(range(20))
    add_back(str(lake.root / "lake"), TOPIC)
    assert storage.check.look(PARTITION, 25, []).missing == []
