"""One writer of a table: what is settled before anything else is committed."""

import pytest

from kafka_ds.delta.commit import Conflict, FateUnknown, PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.store import NotWritten
from kafka_ds.delta.table_writer import TableWriter
from tests.fakes.store import ALWAYS


@pytest.fixture
def table(log):
    return TableWriter(log)


def commit(table, **more):
    attempt = table.begin(PlainChange("TEST", **more))
    table.commit(attempt, read_version=table.log.latest_version())
    return attempt


def leave_unsettled(table, store, **more):
    store.refuse(times=ALWAYS)
    with pytest.raises(FateUnknown) as caught:
        commit(table, **more)
    store.mend()
    return caught.value.attempt


def test_nothing_is_settled_where_every_fate_is_known(table):
    commit(table)
    assert table.settle() is None


def test_a_commit_whose_answer_was_lost_is_settled_once(table, store):
    attempt = leave_unsettled(table, store)
    assert table.settle() is attempt
    assert attempt.won_version == 1
    assert table.settle() is None
    assert table.log.latest_version() == 1


def test_nothing_else_is_committed_while_a_fate_is_unknown(table, store):
    leave_unsettled(table, store)
    with pytest.raises(AssertionError, match="settled before"):
        commit(table)
    table.settle()
    assert commit(table).won_version == 2


@pytest.mark.parametrize("error", [TimeoutError, NotWritten])
def test_a_fate_stays_unknown_while_the_store_is_away(table, store, error):
    attempt = leave_unsettled(table, store)
    store.refuse(error, times=ALWAYS)
    with pytest.raises(FateUnknown):
        table.settle()
    store.mend()
    assert table.settle() is attempt


@pytest.mark.parametrize("is_again", [False, True])
def test_a_commit_is_settled_whatever_its_try_ended_with(table, store, is_again):
    """Memory that runs out is no answer of the store's."""
    if is_again:
        leave_unsettled(table, store)
    store.lose(MemoryError)
    with pytest.raises(MemoryError):
        table.settle() if is_again else commit(table)
    with pytest.raises(AssertionError, match="settled before"):
        commit(table)
    assert table.settle().won_version == 1
    assert commit(table).won_version == 2


def test_a_mistake_before_the_first_try_leaves_nothing_to_settle(table):
    with pytest.raises(TypeError):
        commit(table, actions=[{"add": object()}])
    assert table.settle() is None


def test_a_commit_that_another_ended_is_settled_without_a_version(table, store, clock):
    def refuse(version, actions):
        raise Conflict("another was first", version=version)

    attempt = leave_unsettled(table, store, check=refuse)
    commit(TableWriter(DeltaLog(store, "table", clock=clock)))
    assert table.settle() is attempt
    assert attempt.won_version is None and attempt.files_may_be_deleted
    assert commit(table).won_version == 2


def test_files_are_as_old_as_they_say(table, clock):
    begun_ms = clock.boot_ms()
    clock.sleep(10)
    assert table.begin(PlainChange("TEST"), begun_ms=begun_ms).begun_ms == begun_ms
    assert table.begin(PlainChange("TEST")).begun_ms == clock.boot_ms()


def test_settling_inspects_what_came_after_the_last_version_that_was_tried(table, store, clock):
    seen = []
    leave_unsettled(table, store, check=lambda version, actions: seen.append(version))
    other = TableWriter(DeltaLog(store, "table", clock=clock))
    commit(other)

    store.refuse(calls="read", path=f"*/{commit_file(2)}")
    with pytest.raises(FateUnknown):
        table.settle()
    commit(other)
    table.log.latest_version()
    assert table.settle().won_version == 3
    assert seen == [1, 2]
