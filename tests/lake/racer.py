"""One of several processes that commit to the same tables; prints what it won, one line each."""

import random
import sys
import time

import pyarrow as pa

from kafka_ds.delta.commit import Conflict, PlainChange
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.uri import open_store
from kafka_ds.topic.table import TopicTable
from tests.fakes.lake_rows import TOPIC_ID, commit, copy_of

PARTITIONS = 3
# Of so many offsets one is erased.
ERASED_EACH = 3


def say(*words):
    print(*words, flush=True)


def plain(store, name, count):
    """Win `count` versions of a plain table."""
    log = DeltaLog(store, "table")
    version = log.latest_version()
    for number in range(count):
        change = PlainChange("RACE", info={"who": name, "number": number})
        version = log.commit(log.begin(change), read_version=version)
        say(version)


def deltalake(store, name, count):
    """Append `count` rows as delta-rs does, one a commit."""
    from deltalake import CommitProperties, write_deltalake

    # Its own number of tries, 15, is too few beside two that never rest.
    patient = CommitProperties(max_commit_retries=1000)
    for number in range(count):
        rows = pa.table({"a": [number]})
        write_deltalake(
            store.uri("table"),
            rows,
            mode="append",
            commit_properties=patient,
            storage_options=store.delta_options,
        )
        say("appended")


def erase(store, name, count):
    """Delete `count` rows of partition 1 as delta-rs does, one a commit, as they come."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    number = 0
    while number < count:
        table = DeltaTable(store.uri("topics/orders"), storage_options=store.delta_options)
        try:
            gone = table.delete(f'partition = 1 AND "offset" = {number * ERASED_EACH}')
        except DeltaError:
            continue
        if gone["num_deleted_rows"]:
            say("erased", number * ERASED_EACH)
            number += 1


def tier(store, name, goal):
    """Copy ranges of several partitions until each reaches `goal`, as a tier of its own would."""
    table = TopicTable(store, "orders")
    table.open(TOPIC_ID)
    lots = random.Random(name)
    tries = 0
    while True:
        snapshot = table.read()
        ends = {each: snapshot.highest_offset_in_remote_storage(each) for each in range(PARTITIONS)}
        behind = [each for each, end in ends.items() if end is None or end < goal]
        if not behind:
            return
        parts = []
        for each in lots.sample(behind, lots.randint(1, len(behind))):
            start = 0 if ends[each] is None else ends[each] + 1
            end = start + lots.randint(0, 9)
            parts.append(copy_of(table, each, start, end, attempt=f"{name}{tries}"))
        tries += 1
        try:
            done = commit(table, *parts)
        except Conflict:
            continue
        say("won", done.version, len(parts) - len(done.out))


def main():
    uri, what, name, count = sys.argv[1:]
    store = open_store(uri)
    say("ready")
    while store.size("go") is None:
        time.sleep(0.005)
    {"plain": plain, "deltalake": deltalake, "erase": erase, "tier": tier}[what](
        store, name, int(count)
    )


if __name__ == "__main__":
    main()
