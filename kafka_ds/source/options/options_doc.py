"""Pure: the table of options for docs/spark.md; a test keeps the page true, each example an accepted one, and each
default what holds without it.

What an option is called and does is said once, in `options.OPTIONS` and `sink.options.SINK_OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from kafka_ds.client.settings import REFUSED, ClientSettings, option_name
from kafka_ds.sink.options import DECISIONS_TOPIC, SINK_OPTIONS
from kafka_ds.source.options.options import OPTIONS

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
    "maxBytesPerTrigger": "256m",
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
# What holds in a batch and in a stream where an option is not given; what is missing here then limits nothing.
DEFAULTS: Final = {
    "startingOffsets": ("earliest", "latest"),
    "endingOffsets": ("latest", ""),
    "startingOffsetsByTimestampStrategy": ("error", "error"),
    "failOnDataLoss": ("true", "true"),
    "maxTriggerDelay": ("", "15m"),
    "includeHeaders": ("false", "false"),
    "kafkaConsumer.pollTimeoutMs": ("120000", "120000"),
    "fetchOffset.numRetries": ("3", "3"),
    "fetchOffset.retryIntervalMs": ("1000", "1000"),
    "tiers": ("both", "both"),
    "isolation": ("read_committed", "read_committed"),
    "deliveryGuarantee": ("at_least_once", "exactly_once"),
    "decisionsTopic": ("", DECISIONS_TOPIC),
}


def render() -> str:
    """The part of the page that begins with ``MARK``."""
    return (
        f"{MARK}\nNames are case-insensitive. `kafka.bootstrap.servers` and one of `subscribe`, "
        f"`subscribePattern`, `assign` are required.\n\n{_table(OPTIONS)}\n{_settings()}\n"
        "For writes `kafka.bootstrap.servers` is required, and `topic` or a column of that name:\n\n"
        f"{_table(SINK_OPTIONS)}"
    )


def _settings() -> str:
    """What of a consumer's settings a read knows."""
    known = [
        f"`{option_name(field.name)}`"
        for field in fields(ClientSettings)
        if field.name not in ("bootstrap_servers", "security")
    ]
    refused = [f"`kafka.{name}`" for name in REFUSED]
    return (
        "For reads, settings `kafka.*` are a consumer's, with Kafka's names and units: "
        f"{', '.join(known)}, `kafka.security.protocol`, `kafka.ssl.*` and `kafka.sasl.*`.\n"
        "Their defaults are Kafka's, except for `isolation.level`, `fetch.max.wait.ms` (10: the source asks only for "
        "offsets that exist), "
        "`max.partition.fetch.bytes` (4 MiB: a task reads one partition) and the socket's buffers (the system's).\n"
        "Settings of groups, metrics and polling (`kafka.group.id`, `kafka.session.timeout.ms`, "
        "`kafka.max.poll.records` …) are accepted and have no effect; nor have `kafka.check.crcs` (checksums are "
        "always checked) and `kafka.reconnect.backoff.ms` with its `max` (pauses are `kafka.retry.backoff.ms`). "
        f"{', '.join(refused)} and all others are refused by name.\n"
    )


def _table(options: Mapping[str, str]) -> str:
    rows = "".join(
        f"| `{name}` | {text} | {_default(name)} | {_code(EXAMPLES.get(name, ''))} |\n"
        for name, text in options.items()
    )
    return f"| option | what | default | example |\n| --- | --- | --- | --- |\n{rows}"


def _default(name: str) -> str:
    batch, stream = DEFAULTS.get(name, ("", ""))
    if batch and stream and batch != stream:
        return f"{_code(batch)}, in streams {_code(stream)}"
    return _code(batch or stream)


def _code(value: str) -> str:
    return f"`{value}`" if value else ""
