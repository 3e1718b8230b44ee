"""What several tests use: offsets."""

from kafka_ds.topic.files.parquet import read_files
from kafka_ds.topic.schemas import TOPIC_FILE_SCHEMA


def offsets(table, partition=0, *, snapshot=None, max_bytes=1 << 62):
    """All offsets of a partition as a reader gets them that reads on from where it came to."""
    if snapshot is None:
        snapshot = table.read()
    found, at = [], 0
    while files := snapshot.index.find_next(partition, at):
        end = max(each.max_offset for each in files)
        rows, complete = read_files(
            snapshot.reader, files, start_offset=at, end_offset=end, max_bytes=max_bytes
        )
        assert rows.schema == TOPIC_FILE_SCHEMA
        found += rows.column("offset").to_pylist()
        at = complete + 1
    return found
