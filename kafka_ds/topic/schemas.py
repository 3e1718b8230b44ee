"""Pure: the schemas of the tables, which are a contract with everything that reads Delta.

Columns are added, never renamed, retyped or dropped; all are nullable, so that an engine which writes fewer is no
special case. Types are those which DuckDB, Polars, Trino and Spark all read; no table needs a feature beyond the oldest
protocol. Statistics are kept on offset and timestamp only: a footer with every statistic is larger than the index that
it serves for.
"""

from __future__ import annotations

import pyarrow as pa

from kafka_ds.delta.actions import DAY_MS
from kafka_ds.delta.schema import TIMESTAMP_TYPE, arrow_schema
from kafka_ds.topic.metadata_table import COLUMNS

__all__ = [
    "BATCH_TYPE",
    "CLUSTER_METADATA_SCHEMA",
    "HEADERS_TYPE",
    "OFFSETS_FILE_SCHEMA",
    "OFFSETS_PARTITION_COLUMNS",
    "OFFSETS_SCHEMA",
    "REMOTE_LOG_METADATA_SCHEMA",
    "STATISTICS_COLUMNS",
    "TOPIC_FILE_SCHEMA",
    "TOPIC_PARTITION_COLUMNS",
    "TOPIC_SCHEMA",
    "system_table_properties",
    "topic_table_properties",
]

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

# The framing of the batch that a record came in: the producer's state can be rebuilt from it.
BATCH_TYPE = pa.struct(
    [
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int32()),
        pa.field("base_sequence", pa.int32()),
        pa.field("attributes", pa.int32()),
        pa.field("max_timestamp", pa.int64()),
    ]
)

# One row is one committed data record. `timestamp` is null where its milliseconds are no date from
# 1970 to 9999; `timestamp_ms` holds them then, and only then. `headers` is null where there are
# none, as in Spark's own Kafka source. Where a header's key is not UTF-8, `headers_raw` holds the
# header section of the record as it was (count, keys, values), and `headers` is null.
TOPIC_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("timestamp_type", pa.int32()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("headers_raw", pa.binary()),
        pa.field("batch", BATCH_TYPE),
    ]
)
TOPIC_PARTITION_COLUMNS = ("partition",)

# What lies in a Parquet file: Delta keeps partition columns in the log alone.
TOPIC_FILE_SCHEMA = pa.schema(
    [field for field in TOPIC_SCHEMA if field.name not in TOPIC_PARTITION_COLUMNS]
)
STATISTICS_COLUMNS = ("offset", "timestamp")

LEADER_EPOCHS_TYPE = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("epoch", pa.int32()), pa.field("start_offset", pa.int64())]),
    )
)

# One row is one event in the life of a tiered range; "now" is a view that takes the last one of
# each segment, ordered by (version, sequence), never by time.
REMOTE_LOG_METADATA_SCHEMA = pa.schema(
    [
        pa.field("event_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("sequence", pa.int32()),
        pa.field("event_time", TIMESTAMP_TYPE),
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment_id", pa.string()),
        pa.field("state", pa.string()),
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("leader_epochs", LEADER_EPOCHS_TYPE),
        pa.field("max_timestamp", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("lake_bytes", pa.int64()),
        pa.field("row_count", pa.int64()),
        pa.field("broker_id", pa.int32()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("files", pa.list_(pa.field("element", pa.string()))),
        pa.field("residue", pa.string()),
    ]
)

# One row is one event of the cluster's metadata log (`kind` = "event"), or one piece of a snapshot of its state (`kind`
# = "snapshot"). `payload` is the event as JSON; the columns before it are extracted from it for queries.
CLUSTER_METADATA_SCHEMA = arrow_schema(COLUMNS)

# A run of offsets of a share partition; Kafka's numbers: 0 available, 2 acknowledged, 3 archiving, 4 archived.
STATE_BATCH_TYPE = pa.struct(
    [
        pa.field("first_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("delivery_state", pa.int32()),
        pa.field("delivery_count", pa.int32()),
    ]
)

# Each broker's last checkpoint: its partitions (`kind` = "partition"), of the groups that it coordinates the groups
# ("group") and their committed offsets ("offset"), and the states of the share partitions that it coordinates
# ("share_state"). A broker replaces all of its rows at once.
OFFSETS_SCHEMA = pa.schema(
    [
        pa.field("broker_id", pa.int32()),
        pa.field("event_time", TIMESTAMP_TYPE),
        pa.field("kind", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("log_start_offset", pa.int64()),
        pa.field("local_log_start_offset", pa.int64()),
        pa.field("last_stable_offset", pa.int64()),
        pa.field("high_watermark", pa.int64()),
        pa.field("log_end_offset", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("coordinator_partition", pa.int32()),
        pa.field("coordinator_epoch", pa.int32()),
        pa.field("group_id", pa.string()),
        pa.field("group_type", pa.string()),
        pa.field("protocol_type", pa.string()),
        pa.field("generation", pa.int32()),
        pa.field("committed_offset", pa.int64()),
        pa.field("committed_leader_epoch", pa.int32()),
        pa.field("metadata", pa.string()),
        pa.field("commit_time", TIMESTAMP_TYPE),
        pa.field("expire_timestamp", pa.int64()),
        pa.field("start_offset", pa.int64()),
        pa.field("state_epoch", pa.int32()),
        pa.field("delivery_complete_count", pa.int32()),
        pa.field("state_batches", pa.list_(pa.field("element", STATE_BATCH_TYPE))),
    ]
)
OFFSETS_PARTITION_COLUMNS = ("broker_id",)

# What lies in a Parquet file of it.
OFFSETS_FILE_SCHEMA = pa.schema(
    [field for field in OFFSETS_SCHEMA if field.name not in OFFSETS_PARTITION_COLUMNS]
)

# Put-if-absent is exclusive only while a version's file exists: a writer that was paused past the log's clean-up would
# win an old version. So the log is kept for a week at least.
LOG_RETENTION_MS = 7 * DAY_MS
CHECKPOINT_INTERVAL = 100


def topic_table_properties(log_retention_ms: int = LOG_RETENTION_MS) -> dict[str, str]:
    """The configuration of a topic's table; the retention of its log in whole days, rounded up."""
    days = -(-max(log_retention_ms, LOG_RETENTION_MS) // DAY_MS)
    return {
        **system_table_properties(),
        "delta.logRetentionDuration": f"interval {days} days",
        "delta.dataSkippingStatsColumns": ",".join(STATISTICS_COLUMNS),
    }


def system_table_properties() -> dict[str, str]:
    """The configuration of every table of kafka-ds; no property here raises the protocol version."""
    return {
        "delta.enableDeletionVectors": "false",
        "delta.logRetentionDuration": f"interval {LOG_RETENTION_MS // DAY_MS} days",
        "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    }
