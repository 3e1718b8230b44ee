"""Pure: metrics in OpenTelemetry's format (MetricsData of version 1), as far as Kafka's clients write it: gauges, sums.

Protobuf's own library reads them, by the few fields that are declared here; it skips all others. It is imported with
the first push: 10 MB of memory (docs/decisions/0029-pushed-metrics.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from kafka_ds.records.compression import CorruptRecord, decompress

# A push may hold more, uncompressed or not; what is beyond is refused, or dropped.
UNPACKED_BYTES_MAX = 16 << 20
POINTS_MAX = 10_000
_PACKAGE = "kafka_ds.otlp"

# message -> field -> (number, type). Types are those of Protobuf, or messages; `*` is repeated, `?` tells absence.
_MESSAGES = {
    "MetricsData": {"resource_metrics": (1, "*ResourceMetrics")},
    "ResourceMetrics": {"resource": (1, "Resource"), "scope_metrics": (2, "*ScopeMetrics")},
    "Resource": {"attributes": (1, "*KeyValue")},
    "ScopeMetrics": {"metrics": (2, "*Metric")},
    "Metric": {"name": (1, "string"), "gauge": (5, "Points"), "sum": (7, "Points")},
    "Points": {"data_points": (1, "*Point"), "is_monotonic": (3, "bool")},
    "Point": {
        "time_unix_nano": (3, "fixed64"),
        "as_double": (4, "?double"),
        "as_int": (6, "?sfixed64"),
        "attributes": (7, "*KeyValue"),
    },
    "KeyValue": {"key": (1, "string"), "value": (2, "AnyValue")},
    "AnyValue": {
        "string_value": (1, "?string"),
        "bool_value": (2, "?bool"),
        "int_value": (3, "?int64"),
        "double_value": (4, "?double"),
    },
}  # fmt: skip
_VALUES = tuple(_MESSAGES["AnyValue"])


class MetricPoint(NamedTuple):
    """One value of a client's metric; `attributes` are those of the client (its group, …) and of the metric."""

    name: str
    value: float
    is_monotonic: bool
    time_ms: int
    attributes: tuple[tuple[str, str], ...]


class InvalidMetrics(Exception):
    """The bytes are not metrics."""


def points_of(codec: int, data: bytes) -> list[MetricPoint]:
    """The points of a push, POINTS_MAX at most; those that have no number (NaN) are none. Raises InvalidMetrics."""
    # No other process needs it, and few brokers do.
    from google.protobuf.message import DecodeError

    try:
        plain = decompress(codec, data, limit_bytes=UNPACKED_BYTES_MAX)
        found = _metrics_data().FromString(plain)
    except (CorruptRecord, DecodeError) as error:
        raise InvalidMetrics(str(error)) from None
    return list(islice(_points(found), POINTS_MAX))


def _points(found: Any) -> Iterator[MetricPoint]:
    for of_resource in found.resource_metrics:
        of_client = _attributes(of_resource.resource.attributes)
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                is_sum = metric.HasField("sum")
                points = metric.sum if is_sum else metric.gauge
                for each in points.data_points:
                    value = each.as_double if each.HasField("as_double") else each.as_int
                    if value - value == 0:  # Neither NaN nor infinite.
                        yield MetricPoint(
                            metric.name,
                            value,
                            is_sum and points.is_monotonic,
                            each.time_unix_nano // 1_000_000,
                            tuple({**of_client, **_attributes(each.attributes)}.items()),
                        )


def _attributes(pairs: Iterable[Any]) -> dict[str, str]:
    return {
        pair.key: str(getattr(pair.value, name))
        for pair in pairs
        for name in _VALUES
        if pair.value.HasField(name)
    }


@cache
def _metrics_data() -> Any:
    """The class of MetricsData."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3"
    )
    for message, declared in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, type_) in declared.items():
            plain = type_.lstrip("*?")
            label = kinds.LABEL_REPEATED if type_[0] == "*" else kinds.LABEL_OPTIONAL
            field = described.field.add(name=name, number=number, label=label)
            if plain in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{plain}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{plain.upper()}")
            if type_[0] == "?":
                field.proto3_optional = True
                field.oneof_index = len(described.oneof_decl)
                described.oneof_decl.add(name=f"_{name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricsData"))
