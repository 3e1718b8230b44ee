"""A topic's table under the rules for every commit: which partitions drop out, continue, or are refused."""

import json

import pytest

from kafka_ds.delta.actions import commit_info, protocol_action
from kafka_ds.delta.commit import FateUnknown, PlainChange
from kafka_ds.delta.log import DeltaLog, ForeignTable
from kafka_ds.delta.snapshot import NoSuchTable
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.commit_rules import (
    FilesRemoved,
    Intent,
    LeaderEpochFenced,
    LogStartIncremented,
    PartitionIntent,
    RangeGap,
    RangeTaken,
    TableChanged,
    TopicIdChanged,
)
from kafka_ds.topic.names import TOPIC_ID_KEY
from kafka_ds.topic.snapshot import TopicSnapshot
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of
from tests.fakes.store import ALWAYS, MemoryStore

OTHER_ID = bytes(range(2, 18))


@pytest.fixture
def store():
    return MemoryStore()


def table_of(store, topic_id=TOPIC_ID):
    table = TopicTable(store, "orders", clock=store.clock)
    table.open(topic_id)
    return table


@pytest.fixture
def table(store):
    return table_of(store)


def metadata_of(table, **configuration):
    metadata = dict(table.read().metadata)
    metadata["configuration"] = {**metadata["configuration"], **configuration}
    return {"metaData": metadata}


def plain_commit(store, *actions):
    log = DeltaLog(store, "topics/orders", clock=store.clock)
    log.commit(log.begin(PlainChange("OTHER", actions=actions)), read_version=log.latest_version())


def test_ranges_of_many_partitions_share_a_commit(table):
    done = commit(
        table, copy_of(table, 0, 0, 9), copy_of(table, 1, 5, 7, leader_epoch=3, log_start=5)
    )
    assert done.version == 1 and done.out == {}
    assert [table.snapshot.highest_offset_in_remote_storage(each) for each in (0, 1, 2)] == [
        9,
        7,
        None,
    ]
    assert [table.snapshot.leader_epoch(each) for each in (0, 1, 2)] == [0, 3, None]
    assert [entry.min_offset for entry in table.snapshot.index.find(1, 0, 100)] == [5]


def test_a_range_without_rows_moves_the_end_alone(table):
    done = commit(
        table, PartitionIntent(partition=0, leader_epoch=0, start_offset=0, end_offset=99)
    )
    assert done.version == 1
    assert table.snapshot.highest_offset_in_remote_storage(0) == 99
    assert table.snapshot.files == {}


def test_the_same_range_twice_is_refused_before_anything_is_tried(table):
    commit(table, copy_of(table, 0, 0, 9))
    with pytest.raises(RangeTaken, match="partition 0: offsets up to 9 are there"):
        commit(table, copy_of(table, 0, 0, 9, attempt="b"))
    assert table.log.latest_version() == 1


def test_a_range_that_leaves_a_gap_is_refused(store, table):
    with pytest.raises(RangeGap, match="partition 0: the table ends at -1, the range begins at 5"):
        commit(table, copy_of(table, 0, 5, 9))
    commit(table, copy_of(table, 0, 0, 9))
    done = commit(table, copy_of(table, 0, 11, 19), copy_of(table, 1, 0, 9))
    assert isinstance(done.out[0], RangeGap) and done.out.keys() == {0}
    assert table_of(store).snapshot.highest_offset_in_remote_storage(0) == 9


def test_a_range_may_begin_where_the_log_does(table):
    """Of a topic that becomes a table late, after DeleteRecords, or when copies were disabled for a while."""
    commit(table, copy_of(table, 0, 5, 9, log_start=5))
    with pytest.raises(RangeGap):
        commit(table, copy_of(table, 0, 20, 29, log_start=19))
    commit(table, PartitionIntent(partition=0, leader_epoch=0, log_start_offset=20))
    commit(table, copy_of(table, 0, 20, 29))
    commit(table, copy_of(table, 0, 40, 49, log_start=45))
    assert table.snapshot.highest_offset_in_remote_storage(0) == 49


def test_a_gap_below_a_log_start_and_that_log_start_are_one_commit(store, table):
    """Else the next leader, who may not have the log start, would offer what is nowhere."""
    commit(table, copy_of(table, 0, 0, 2), copy_of(table, 1, 0, 2))
    other = table_of(store)
    further = PartitionIntent(partition=1, leader_epoch=0, log_start_offset=7)
    store.race(lambda: commit(other, further))
    commit(table, *(copy_of(table, each, 5, 9, log_start=5) for each in (0, 1)))
    snapshot = table_of(store).snapshot
    assert [snapshot.highest_offset_in_remote_storage(each) for each in (0, 1)] == [9, 9]
    assert [snapshot.log_start(each) for each in (0, 1)] == [5, 7]


def test_two_writers_of_one_range(store, table):
    other = table_of(store)
    store.race(lambda: commit(other, copy_of(other, 0, 0, 9, attempt="theirs")))
    with pytest.raises(RangeTaken) as caught:
        commit(table, copy_of(table, 0, 0, 9, attempt="ours"))
    assert caught.value.partitions == {0} and caught.value.version == 1
    table.read()
    assert [path.rpartition("-")[2] for path in table.snapshot.files] == ["theirs.parquet"]


def test_a_conflict_of_one_partition_lets_the_rest_go_on(store, table):
    other = table_of(store)
    store.race(lambda: commit(other, copy_of(other, 1, 0, 9, attempt="theirs")))
    done = commit(table, *(copy_of(table, each, 0, 9, attempt="ours") for each in range(3)))
    assert done.version == 2
    assert isinstance(done.out[1], RangeTaken) and done.out.keys() == {1}
    assert not done.attempt.files_may_be_deleted
    assert sorted(path.rpartition("/")[0] for path in table.snapshot.files) == [
        f"topics/orders/partition={each}" for each in range(3)
    ]
    actions = table.log.read_version(2)
    assert sum("add" in action for action in actions) == 2
    assert "partition=1" not in json.dumps(actions)


def test_a_fenced_leader_is_out_even_when_it_slept_through_the_fence(store, table):
    other = table_of(store)
    store.race(lambda: commit(other, PartitionIntent(partition=0, leader_epoch=5)))
    with pytest.raises(LeaderEpochFenced, match="leader epoch 5 wrote, this one's is 4"):
        commit(table, copy_of(table, 0, 0, 9, leader_epoch=4))
    late = table_of(store)
    with pytest.raises(LeaderEpochFenced):
        commit(late, copy_of(late, 0, 0, 9, leader_epoch=4, attempt="b"))
    assert commit(late, copy_of(late, 0, 0, 9, leader_epoch=5, attempt="c")).version == 2


def test_a_lost_answer_leaves_one_copy(store, table):
    part = copy_of(table, 0, 0, 9)
    store.lose()
    assert commit(table, part).version == 1
    assert len(table.snapshot.files) == 1


def test_an_unknown_fate_is_taken_up_again(store, table):
    part = copy_of(table, 0, 0, 9)
    store.refuse(times=ALWAYS)
    with pytest.raises(FateUnknown):
        commit(table, part)
    store.mend()
    table.settle()
    assert table.read().version == 1
    assert table.snapshot.highest_offset_in_remote_storage(0) == 9


def test_what_comes_next_is_decided_after_an_unknown_fate_is_settled(store, table):
    store.refuse(times=6)
    with pytest.raises(FateUnknown):
        commit(table, copy_of(table, 0, 0, 9))
    with pytest.raises(RangeTaken, match="offsets up to 9 are there"):
        commit(table, copy_of(table, 0, 0, 9, attempt="again"))
    assert table.read().version == 1


def test_a_commit_is_settled_behind_the_versions_that_it_has_looked_at(store, table):
    store.refuse(times=ALWAYS)
    with pytest.raises(FateUnknown):
        commit(table, copy_of(table, 0, 0, 9))
    store.mend()
    other = table_of(store)
    commit(other, copy_of(other, 1, 0, 9, attempt="of another partition"))
    store.refuse(calls="read", path="*/00000000000000000002.json")
    with pytest.raises(FateUnknown):
        table.settle()
    commit(other, copy_of(other, 0, 0, 9, attempt="of the same offsets"))
    assert table.read().version == 2
    table.settle()
    assert table.read().version == 2
    assert len(table.snapshot.index.find(0, 0, 9)) == 1


def test_the_log_start_only_rises(store, table):
    def start(offset):
        return PartitionIntent(partition=0, leader_epoch=0, log_start_offset=offset)

    commit(table, start(10))
    with pytest.raises(LogStartIncremented):
        commit(table, start(10))
    other = table_of(store)
    store.race(lambda: commit(other, start(30)))
    with pytest.raises(LogStartIncremented, match="the log starts at 30"):
        commit(table, start(20))
    assert table.read().log_start(0) == 30


def removal(table, entry, **more):
    action = {
        "remove": {
            "path": entry.action_path,
            "deletionTimestamp": table.log.clock.wall_ms(),
            "dataChange": True,
            "partitionValues": {"partition": str(entry.partition)},
            "size": entry.size,
        }
    }
    return PartitionIntent(
        partition=entry.partition, leader_epoch=0, removes=(action,), log_start_offset=10, **more
    )


def test_files_below_the_log_start_go_at_once(table):
    copied = commit(table, copy_of(table, 0, 0, 9)).version
    (entry,) = table.snapshot.index.find(0, 0, 9)
    expired = commit(table, removal(table, entry), operation="DELETE").version
    # Engines that write at the same time let an append pass where it was blind, and only then.
    assert commit_info(table.log.read_version(copied))["isBlindAppend"] is True
    assert commit_info(table.log.read_version(expired))["isBlindAppend"] is False
    assert table.snapshot.files == {}
    assert (
        table.snapshot.log_start(0) == 10
        and table.snapshot.highest_offset_in_remote_storage(0) == 9
    )
    with pytest.raises(FilesRemoved):
        commit(table, removal(table, entry))


def test_a_file_that_another_removed_cannot_be_removed_again(store, table):
    commit(table, copy_of(table, 0, 0, 9))
    (entry,) = table.snapshot.index.find(0, 0, 9)
    part = removal(table, entry)
    store.race(lambda: plain_commit(store, *part.removes))
    with pytest.raises(FilesRemoved, match=r"partition 0: .* \(version 2\)"):
        commit(table, part)


def test_adds_and_removes_do_not_go_together(table):
    commit(table, copy_of(table, 0, 0, 9))
    (entry,) = table.snapshot.index.find(0, 0, 9)
    with pytest.raises(AssertionError):
        removal(table, entry, adds=({"add": {}},))


def test_a_deleted_topic_leaves_its_log_to_the_next_of_its_name(store, table):
    commit(table, copy_of(table, 0, 0, 9))
    stale = table_of(store)
    assert table.retire(TOPIC_ID)
    assert not table.retire(TOPIC_ID)
    assert table.snapshot.topic_id is None and table.snapshot.files == {}
    with pytest.raises(TopicIdChanged, match="was deleted"):
        table_of(store, TOPIC_ID)
    after = table_of(store, OTHER_ID)
    assert after.snapshot.topic_id == OTHER_ID
    assert after.snapshot.highest_offset_in_remote_storage(0) is None
    commit(after, copy_of(after, 0, 0, 3, attempt="new"), topic_id=OTHER_ID)
    with pytest.raises(TopicIdChanged):
        commit(stale, copy_of(stale, 0, 10, 19, attempt="stale"))
    with pytest.raises(TopicIdChanged):
        table_of(store, TOPIC_ID)
    with pytest.raises(TopicIdChanged):
        after.retire(TOPIC_ID)
    assert TopicSnapshot.load(store, "orders", 1).highest_offset_in_remote_storage(0) == 9


def test_a_leader_paused_over_delete_and_recreate_writes_nothing(store, table):
    def recreate():
        other = TopicTable(store, "orders", clock=store.clock)
        other.retire(TOPIC_ID)
        other.open(OTHER_ID)

    part = copy_of(table, 0, 0, 9)
    store.race(recreate)
    with pytest.raises(TopicIdChanged):
        commit(table, part)
    assert table.read().files == {}


def test_files_that_come_while_a_topic_is_deleted_go_too(store, table):
    commit(table, copy_of(table, 0, 0, 9))
    other = table_of(store)
    part = copy_of(other, 0, 10, 19)
    store.race(lambda: commit(other, part))
    table.retire(TOPIC_ID)
    assert table.read().files == {}


def test_what_is_not_there_is_deleted_already(store):
    table = TopicTable(store, "nothing", clock=store.clock)
    assert not table.retire(TOPIC_ID)
    with pytest.raises(NoSuchTable, match="memory:/topics/nothing is no table"):
        table.read()


@pytest.mark.parametrize(
    "change",
    [
        {"delta.columnMapping.mode": "name"},
        {"delta.appendOnly": "true"},
        {"delta.logRetentionDuration": "interval 6 days"},
        {"delta.logRetentionDuration": "interval 1 month"},
        {"delta.deletedFileRetentionDuration": "interval 0 hours"},
        {"delta.deletedFileRetentionDuration": "interval 59 minutes"},
        {"delta.setTransactionRetentionDuration": "interval 7 days"},
        {"delta.constraints.positive": "offset > 0"},
    ],
)
def test_properties_that_are_not_harmless_pause_the_topic(store, table, change):
    part = copy_of(table, 0, 0, 9)
    action = metadata_of(table, **change)
    store.race(lambda: plain_commit(store, action))
    with pytest.raises(TableChanged, match="version 1"):
        commit(table, part)
    with pytest.raises(TableChanged):
        commit(table, copy_of(table, 0, 0, 9, attempt="b"))
    with pytest.raises(TableChanged, match=r"memory:/topics/orders"):
        table_of(store)


def test_harmless_changes_do_not_disturb(store, table):
    part = copy_of(table, 0, 0, 9)
    metadata = metadata_of(table, **{"delta.checkpointInterval": "7", "owner": "me"})
    schema = json.loads(metadata["metaData"]["schemaString"])
    schema["fields"].append({"name": "note", "type": "string", "nullable": True, "metadata": {}})
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    store.race(lambda: plain_commit(store, metadata))
    assert commit(table, part).version == 2


@pytest.mark.parametrize("spoil", ["drop", "retype", "nested", "require", "forbid", "repartition"])
def test_a_schema_that_does_not_hold_our_rows_pauses_the_topic(store, table, spoil):
    metadata = metadata_of(table)
    schema = json.loads(metadata["metaData"]["schemaString"])
    if spoil == "drop":
        schema["fields"] = [each for each in schema["fields"] if each["name"] != "key"]
    elif spoil == "retype":
        schema["fields"][1]["type"] = "string"
    elif spoil == "nested":
        headers = next(each for each in schema["fields"] if each["name"] == "headers")
        headers["type"]["elementType"]["fields"].pop()
    elif spoil == "forbid":
        next(each for each in schema["fields"] if each["name"] == "key")["nullable"] = False
    elif spoil == "repartition":
        metadata["metaData"]["partitionColumns"] = []
    else:
        note = {"name": "note", "type": "string", "nullable": False, "metadata": {}}
        schema["fields"].append(note)
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    part = copy_of(table, 0, 0, 9)
    store.race(lambda: plain_commit(store, metadata))
    with pytest.raises(TableChanged, match="version 1"):
        commit(table, part)
    # It stays so: for who has read of it, and for who comes later.
    with pytest.raises(TableChanged, match=r": (RESTORE TABLE|ALTER TABLE … ALTER COLUMN) "):
        commit(table, copy_of(table, 0, 0, 9, attempt="b"))
    with pytest.raises(TableChanged, match=r"memory:/topics/orders"):
        table_of(store)
    # A leader that recovers needs no columns: without its fence the partition would have no leader.
    fence = PartitionIntent(partition=0, leader_epoch=7)
    assert commit(table, fence).version == 2
    assert table.snapshot.leader_epoch(0) == 7


def test_a_schema_that_changes_while_a_leader_fences_is_nothing_to_it(store, table):
    metadata = metadata_of(table)
    metadata["metaData"]["partitionColumns"] = []
    store.race(lambda: plain_commit(store, metadata))
    assert commit(table, PartitionIntent(partition=0, leader_epoch=7)).version == 2


def test_a_schema_that_another_engine_spells_in_its_own_way_is_ours_still(store, table):
    def spelt(kind):
        """With what engines leave out, add or set by themselves: order, comments, what may be null within."""
        if not isinstance(kind, dict):
            return kind
        if kind["type"] == "array":
            return {**kind, "elementType": spelt(kind["elementType"]), "containsNull": False}
        fields = [
            {
                **each,
                "type": spelt(each["type"]),
                "metadata": {"comment": "?"},
                "nullable": each["name"] != "offset",
            }
            for each in kind["fields"]
        ]
        return {"type": "struct", "fields": fields}

    metadata = metadata_of(table)
    schema = spelt(json.loads(metadata["metaData"]["schemaString"]))
    schema["fields"].reverse()
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    part = copy_of(table, 0, 0, 9)
    store.race(lambda: plain_commit(store, metadata))
    assert commit(table, part).version == 2
    assert commit(table_of(store), copy_of(table, 0, 10, 19, attempt="b")).version == 3


def test_a_feature_that_comes_with_its_property_is_judged_by_both(store, table):
    """One version has both: neither alone, nor the state before, says what is asked for."""
    protocol = {
        "protocol": {
            "minReaderVersion": 1,
            "minWriterVersion": 7,
            "writerFeatures": ["rowTracking", "domainMetadata"],
        }
    }
    suspended = metadata_of(table, **{"delta.rowTrackingSuspended": "true"})
    part = copy_of(table, 0, 0, 9)
    store.race(lambda: plain_commit(store, protocol, suspended))
    assert commit(table, part).version == 2
    taken_back = metadata_of(table, **{"delta.rowTrackingSuspended": "false"})
    part = copy_of(table, 0, 10, 19, attempt="b")
    store.race(lambda: plain_commit(store, taken_back))
    with pytest.raises(TableChanged, match="version 3: table feature rowTracking"):
        commit(table, part)


def test_a_protocol_change_in_between_pauses_the_topic(store, table):
    part = copy_of(table, 0, 0, 9)
    action = protocol_action()
    action["protocol"]["minReaderVersion"] = 3
    store.race(lambda: plain_commit(store, action))
    with pytest.raises(TableChanged, match="reader version 3"):
        commit(table, part)


def test_a_table_of_somebody_else_is_refused(store):
    log = DeltaLog(store, "topics/orders", clock=store.clock)
    log.create(schema_json='{"type":"struct","fields":[]}', partition_columns=(), configuration={})
    with pytest.raises(ForeignTable, match="memory:/topics/orders holds a table that is not"):
        table_of(store)
    assert log.latest_version() == 0


def test_a_folder_or_a_file_of_somebody_else_is_refused(tmp_path):
    store = LocalStore(str(tmp_path))
    store.put_durable("topics/orders/notes.txt", b"mine")
    with pytest.raises(ForeignTable, match=f"{tmp_path}/topics/orders holds files"):
        TopicTable(store, "orders").open(TOPIC_ID)
    store.put_durable("topics/file", b"mine")
    with pytest.raises(ForeignTable, match=f"{tmp_path}/topics/file is a file"):
        TopicTable(store, "file").open(TOPIC_ID)
    store.put_durable("topics/torn/_delta_log/00000000000000000003.json", b"{}\n")
    with pytest.raises(ForeignTable, match=f"{tmp_path}/topics/torn"):
        TopicTable(store, "torn").open(TOPIC_ID)


def test_the_table_is_configured_with_its_topic_id(table):
    assert table.snapshot.configuration[TOPIC_ID_KEY] == "AQIDBAUGBwgJCgsMDQ4PEA"
    with pytest.raises(AssertionError):
        table.open(bytes(16))


def test_an_intent_of_another_topic_id_is_refused(table):
    with pytest.raises(TopicIdChanged):
        table.commit(
            Intent(operation="COPY", topic_id=OTHER_ID, partitions=()), begun_ms=table.begin_ms()
        )
