"""What several tests use: schema, plan, lake."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.options import parse_options
from kafka_ds.source.plan.offset_reader import OffsetReader
from kafka_ds.source.plan.scan_plan import Plan, plan_scan
from tests.unit.source.source_lake import SourceLake

TYPES = {
    "key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestampType": pa.int32(), "leader_epoch": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}  # fmt: skip


def schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, TYPES[name]) for name in names])


def plan(lake: SourceLake, predicate: Predicate, **options: str) -> Plan:
    given = {"kafka.bootstrap.servers": "nobody:1", "subscribe": lake.topic, "tiers": "remote"}
    parsed = parse_options({**given, "lake": lake.uri, **options}, stream=False)
    reader = OffsetReader(parsed)
    topics = reader.topics()
    reader.open_tables(topics)
    bounds = reader.bounds(topics, reader.partitions(topics))
    starts = reader.resolve(parsed.starting, bounds, starting=True)
    ends = reader.resolve(parsed.ending, bounds, starting=False)
    ranges = {tp: (start, ends[tp]) for tp, start in starts.items()}
    return plan_scan(reader.views(ranges, bounds, predicate), predicate)
