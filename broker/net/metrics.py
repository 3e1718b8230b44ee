"""Pure: what the broker counts, and how Prometheus reads it.

Rules of this file: counters are plain integers that only grow; who reads them makes rates of them. Names are those
that Kafka's metrics have behind the usual exporter (`kafka_network_requestmetrics_requests_total`), so that
dashboards fit. Other parts add their own through `add_source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

# (name, labels, value); names that end in _total are counters, the others gauges.
Sample: TypeAlias = tuple[str, Mapping[str, str], float]
Source: TypeAlias = Callable[[], Iterable[Sample]]

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(slots=True)
class ApiCounters:
    """What is counted of one API."""

    name: str
    requests: int = 0
    seconds: float = 0.0  # from the start of the handler to the answer
    errors: dict[str, int] = field(default_factory=dict)  # by the name of the error code


@dataclass(slots=True)
class NetMetrics:
    """What the network layer counts."""

    apis: dict[int, ApiCounters] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0
    connections_created: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    connections_expired: int = 0
    malformed: int = 0

    def api(self, key: int, name: str) -> ApiCounters:
        """The counters of one API."""
        counters = self.apis.get(key)
        if counters is None:
            counters = self.apis[key] = ApiCounters(name)
        return counters

    def samples(self) -> Iterator[Sample]:
        """All of them, under their Prometheus names."""
        for _, counters in sorted(self.apis.items()):
            label = {"request": counters.name}
            yield "kafka_network_requestmetrics_requests_total", label, counters.requests
        for _, counters in sorted(self.apis.items()):
            label = {"request": counters.name}
            yield "kafka_network_requestmetrics_totaltime_seconds_total", label, counters.seconds
        for _, counters in sorted(self.apis.items()):
            for error, count in sorted(counters.errors.items()):
                label = {"request": counters.name, "error": error}
                yield "kafka_network_requestmetrics_errors_total", label, count
        yield "kafka_server_socket_server_incoming_byte_total", {}, self.bytes_in
        yield "kafka_server_socket_server_outgoing_byte_total", {}, self.bytes_out
        yield "kafka_server_socket_server_connection_count", {}, self.connections
        yield "kafka_server_socket_server_connection_creation_total", {}, self.connections_created
        yield "kafka_server_socket_server_connection_close_total", {}, self.connections_closed
        yield "kafka_server_socket_server_connection_refused_total", {}, self.connections_refused
        yield (
            "kafka_server_socket_server_expired_connections_killed_total",
            {},
            self.connections_expired,
        )
        yield "kafka_server_socket_server_malformed_request_total", {}, self.malformed


class Metrics:
    """All counters of a broker: the network's own, and what others add."""

    def __init__(self) -> None:
        self.net = NetMetrics()
        self._sources: list[Source] = [self.net.samples]

    def add_source(self, source: Source) -> None:
        """Has `source` asked at each reading."""
        self._sources.append(source)

    def render(self) -> str:
        """Everything in Prometheus's text format."""
        families: dict[str, list[str]] = {}
        for source in self._sources:
            for name, labels, value in source():
                families.setdefault(name, []).append(f"{name}{_labels(labels)} {_number(value)}\n")
        return "".join(
            f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n{''.join(lines)}"
            for name, lines in families.items()
        )


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{inner}}}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}"
