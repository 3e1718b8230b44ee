"""What several tests use: adds, table_of."""

from kafka_ds.delta.actions import add_action, txn_action
from kafka_ds.delta.commit import PlainChange
from kafka_ds.topic.names import AppIdKind, app_id, data_file
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID

PARTITIONS = 20


ROWS = 1000


def adds(count):
    for number in range(count):
        partition, start = number % PARTITIONS, number // PARTITIONS * ROWS
        stats = (
            f'{{"numRecords":{ROWS},"minValues":{{"offset":{start},'
            f'"timestamp":"2013-01-01T00:00:00.{number % 1000:03d}Z"}},"maxValues":{{"offset":'
            f'{start + ROWS - 1},"timestamp":"2013-01-01T00:00:01.{number % 1000:03d}Z"}},'
            '"nullCount":{"offset":0,"timestamp":0}}'
        )
        yield add_action(
            path=data_file(partition, start, "A" * 22),
            partition_values={"partition": str(partition)},
            size=1,
            modified_ms=1,
            stats=stats,
        )


def table_of(store, count):
    """A topic's table of this many files, in one commit, and the end of each partition; the files are never opened."""
    table = TopicTable(store, "orders")
    table.open(TOPIC_ID)
    end = count // PARTITIONS * ROWS - 1
    numbers = ((AppIdKind.HIGHEST_OFFSET, end), (AppIdKind.LEADER_EPOCH, 0))
    ends = [
        txn_action(app_id(TOPIC_ID, each, kind), number)
        for each in range(PARTITIONS)
        for kind, number in numbers
    ]
    change = PlainChange("COPY", actions=[*adds(count), *ends])
    table.log.commit(table.log.begin(change), read_version=0)
    return table, end
