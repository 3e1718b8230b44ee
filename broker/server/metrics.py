"""Pure: the metrics of the network layer, and the collection of all metrics of a broker.

Counting is part of every request, so counters are plain numbers that only grow; rates are the readers' business.
`add_source` adds the samples of other parts. `broker.metrics.names` says how to declare a metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from broker.metrics.names import (
    MetricSample,
    Source,
    Summary,
    attribute,
    gauge,
    histogram,
    meter,
)
from broker.metrics.times import RecentTimes
from kafka_ds.protocol.request_memory import RequestMemory

_REQUESTS = "kafka.network:type=RequestMetrics,name="
_SOCKETS = "kafka.server:type=socket-server-metrics"

REQUESTS = meter(
    f"{_REQUESTS}RequestsPerSec", "Requests, by API and version.", "request", "version"
)
ERRORS = meter(
    f"{_REQUESTS}ErrorsPerSec",
    "Errors in responses: of each as a whole, and of each partition or other element; without NONE.",
    "request",
    "error",
)
REQUEST_BYTES = histogram(f"{_REQUESTS}RequestBytes", "Bytes of requests.", "request")
TOTAL_TIME = histogram(
    f"{_REQUESTS}TotalTimeMs", "Time from a request's last byte to its response, in ms.", "request"
)
QUEUE_TIME = histogram(
    f"{_REQUESTS}RequestQueueTimeMs",
    "Time requests waited for earlier requests of their connection, in ms.",
    "request",
)
LOCAL_TIME = histogram(
    f"{_REQUESTS}LocalTimeMs", "Time in the request's handler, in ms.", "request"
)
REMOTE_TIME = histogram(
    f"{_REQUESTS}RemoteTimeMs",
    "Time requests waited for replicas, more records, the disk or the lake, in ms.",
    "request",
)
THROTTLE_TIME = histogram(
    f"{_REQUESTS}ThrottleTimeMs",
    "For how long connections were muted after responses, for clients above their quotas, in ms.",
    "request",
)
MEMORY_AVAILABLE = gauge(
    "kafka.network:type=SocketServer,name=MemoryPoolAvailable",
    "How many bytes of queued.max.request.bytes requests do not take; below 0 while the last one exceeds it.",
)
MEMORY_USED = gauge(
    "kafka.network:type=SocketServer,name=MemoryPoolUsed",
    "How many bytes of queued.max.request.bytes requests take.",
)
BYTES_IN = attribute(_SOCKETS, "incoming-byte-total", "Bytes read from clients.")
BYTES_OUT = attribute(_SOCKETS, "outgoing-byte-total", "Bytes written to clients.")
CONNECTIONS = attribute(_SOCKETS, "connection-count", "Open connections.")
CREATED = attribute(_SOCKETS, "connection-creation-total", "Accepted connections.")
CLOSED = attribute(_SOCKETS, "connection-close-total", "Closed connections.")
EXPIRED = attribute(
    _SOCKETS,
    "expired-connections-killed-count",
    "Connections closed because they were used after their session expired (KIP-368).",
)
IDLE = attribute(
    _SOCKETS,
    "idle-connections-closed-total",
    "Connections closed after connections.max.idle.ms without traffic.",
    ours=True,
)
AUTHENTICATED = attribute(
    _SOCKETS, "successful-authentication-total", "Successful authentications, by TLS or SASL."
)
NOT_AUTHENTICATED = attribute(
    _SOCKETS,
    "failed-authentication-total",
    "Failed authentications, including clients that sent another request first.",
)
REAUTHENTICATED = attribute(
    _SOCKETS, "successful-reauthentication-total", "Successful re-authentications."
)
NOT_REAUTHENTICATED = attribute(
    _SOCKETS, "failed-reauthentication-total", "Failed re-authentications."
)
REFUSED = attribute(
    _SOCKETS,
    "connection-refused-total",
    "Connections refused because of max.connections or max.connections.per.ip.",
    ours=True,
)
KEPT_OUT = attribute(
    _SOCKETS,
    "connection-kept-out-total",
    "Connections above the connection_creation_rate quota of their address.",
    ours=True,
)
MALFORMED = attribute(
    _SOCKETS,
    "malformed-request-total",
    "Connections closed because their bytes were not a supported request.",
    ours=True,
)

FETCH = "Fetch"
FETCH_CONSUMER = "FetchConsumer"
FETCH_FOLLOWER = "FetchFollower"


@dataclass(slots=True)
class ApiCounters:
    """The counters of one API; times in seconds."""

    name: str
    by_version: dict[int, int] = field(default_factory=dict)
    bytes_in: int = 0
    queue_s: float = 0.0  # from the last byte to the start of the handler
    local_s: float = 0.0  # in the handler
    remote_s: float = 0.0  # from the handler's return to its awaited result
    throttle_s: float = 0.0
    times: RecentTimes = field(default_factory=RecentTimes)  # in total
    errors: dict[str, int] = field(default_factory=dict)  # by the name of the error code

    @property
    def seconds(self) -> float:
        """The total time of answered requests."""
        return self.times.total_s


@dataclass(slots=True)
class NetMetrics:
    """The counters of the network layer."""

    apis: dict[int, ApiCounters] = field(default_factory=dict)
    # Fetches of consumers are counted under the API's key, those of followers here.
    followers: ApiCounters = field(default_factory=lambda: ApiCounters(FETCH_FOLLOWER))
    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0
    connections_created: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    connections_rejected: int = 0
    connections_idle: int = 0
    sessions_expired: int = 0
    authentications: int = 0
    failed_authentications: int = 0
    reauthentications: int = 0
    failed_reauthentications: int = 0
    malformed: int = 0
    # None: without a limit.
    memory: RequestMemory | None = None

    def api(self, key: int, name: str) -> ApiCounters:
        """The counters of one API."""
        counters = self.apis.get(key)
        if counters is None:
            name = FETCH_CONSUMER if name == FETCH else name
            counters = self.apis[key] = ApiCounters(name)
        return counters

    def samples(self) -> Iterator[MetricSample]:
        """The samples of all counters."""
        for _, counters in sorted(self.apis.items()):
            if counters.name == FETCH_CONSUMER:
                both = (counters, self.followers)
                yield from _api_samples(FETCH, both)
                yield from _api_samples(FETCH_FOLLOWER, both[1:])
            yield from _api_samples(counters.name, (counters,))
        if self.memory is not None:
            yield MEMORY_AVAILABLE, (), self.memory.bytes_max - self.memory.used_bytes
            yield MEMORY_USED, (), self.memory.used_bytes
        yield BYTES_IN, (), self.bytes_in
        yield BYTES_OUT, (), self.bytes_out
        yield CONNECTIONS, (), self.connections
        yield CREATED, (), self.connections_created
        yield CLOSED, (), self.connections_closed
        yield EXPIRED, (), self.sessions_expired
        yield IDLE, (), self.connections_idle
        yield AUTHENTICATED, (), self.authentications
        yield NOT_AUTHENTICATED, (), self.failed_authentications
        yield REAUTHENTICATED, (), self.reauthentications
        yield NOT_REAUTHENTICATED, (), self.failed_reauthentications
        yield REFUSED, (), self.connections_refused
        yield KEPT_OUT, (), self.connections_rejected
        yield MALFORMED, (), self.malformed


def _api_samples(name: str, parts: Sequence[ApiCounters]) -> Iterator[MetricSample]:
    request = (name,)
    for part in parts:
        for error, count in sorted(part.errors.items()):
            yield ERRORS, (name, error), count
    versions: dict[int, int] = {}
    for part in parts:
        for version, count in part.by_version.items():
            versions[version] = versions.get(version, 0) + count
    for version, count in sorted(versions.items()):
        yield REQUESTS, (name, str(version)), count
    received = sum(versions.values())
    answered = sum(part.times.count for part in parts)
    yield REQUEST_BYTES, request, Summary(received, sum(part.bytes_in for part in parts))
    for metric, total_s in (
        (QUEUE_TIME, sum(part.queue_s for part in parts)),
        (LOCAL_TIME, sum(part.local_s for part in parts)),
        (REMOTE_TIME, sum(part.remote_s for part in parts)),
        (THROTTLE_TIME, sum(part.throttle_s for part in parts)),
    ):
        yield metric, request, Summary(answered, total_s * 1000)
    if len(parts) == 1:
        yield TOTAL_TIME, request, parts[0].times.in_ms()
    else:
        total_ms = sum(part.times.total_s for part in parts) * 1000
        yield TOTAL_TIME, request, Summary(answered, total_ms)


class Metrics:
    """All metrics of a broker."""

    def __init__(self) -> None:
        self.net = NetMetrics()
        self._sources: list[Source] = [self.net.samples]

    def add_source(self, source: Source) -> None:
        """Add a source of samples."""
        self._sources.append(source)

    def samples(self) -> Iterator[MetricSample]:
        """All current samples; may be read in steps, between which values change."""
        for source in tuple(self._sources):
            yield from source()
