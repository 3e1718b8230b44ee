"""Pure: the table of options for docs/spark.md; a test keeps the page true, and
each example an accepted one.

Rules of this file: what an option is called and does is said once, in `options.OPTIONS` and
`sink.options.SINK_OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_ds.sink.options import SINK_OPTIONS
from kafka_ds.source.options import OPTIONS

MARK = "## Options\n"
# A value of each, as it is given to ``option()``.
EXAMPLES: Final = {
    "subscribe": "orders,payments",
    "subscribePattern": "^orders-.*",
    "assign": '{"orders":[0,1]}',
    "startingOffsets": '{"orders":{"0":23,"1":-2}}',
    "endingOffsets": '{"orders":{"0":50,"1":-1}}',
    "startingOffsetsByTimestamp": '{"orders":{"0":1700000000000,"1":1700000000000}}',
    "endingOffsetsByTimestamp": '{"orders":{"0":1700000000000,"1":1700000000000}}',
    "startingTimestamp": "1700000000000",
    "endingTimestamp": "1700003600000",
    "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false",
    "minPartitions": "16",
    "maxRecordsPerPartition": "1000000",
    "maxOffsetsPerTrigger": "500000",
    "minOffsetsPerTrigger": "10000",
    "maxTriggerDelay": "5m",
    "includeHeaders": "true",
    "groupIdPrefix": "reports",
    "kafkaConsumer.pollTimeoutMs": "60000",
    "fetchOffset.numRetries": "5",
    "fetchOffset.retryIntervalMs": "100",
    "lake": "s3://bucket/lake",
    "tiers": "remote",
    "asOfVersion": "12",
    "asOfTimestamp": "2026-11-21T00:00:00Z",
    "asOfLeaderEpoch": "7",
    "pinnedTo": "",
    "columns": "key,value,offset,leader_epoch",
    "where": "partition = 3 AND timestamp >= TIMESTAMP '2026-11-21 00:00:00Z'",
    "isolation": "read_uncommitted",
    "topic": "orders",
    "deliveryGuarantee": "at_least_once",
    "transactionalIdPrefix": "orders-copy",
    "decisionsTopic": "orders_decisions",
}


def render() -> str:
    """The part of the page that begins with ``MARK``."""
    return (
        f"{MARK}\nNames are case-insensitive. `kafka.bootstrap.servers` and one of `subscribe`, "
        f"`subscribePattern`, `assign` are required.\n\n{_table(OPTIONS)}\n"
        "Of a write, where `kafka.bootstrap.servers` is required, and `topic` or a column of that name:\n\n"
        f"{_table(SINK_OPTIONS)}"
    )


def _table(options: Mapping[str, str]) -> str:
    given = {name: f"`{EXAMPLES[name]}`" if EXAMPLES.get(name) else "" for name in options}
    rows = "".join(f"| `{name}` | {text} | {given[name]} |\n" for name, text in options.items())
    return f"| option | what | example |\n| --- | --- | --- |\n{rows}"
