"""Shell: applies client quotas to a request and its response.

The response carries the throttle time and is sent at once; the connection is muted for that long (KIP-219). Of several
quotas the longest throttle time counts. The whole Produce request counts, and the whole response of Fetch and
ShareFetch. A throttled consumer gets no records, and its fetch session stays as it was; a member of a share group gets
those that it has acquired. Request time is the event loop's time for the request.
Inter-broker requests (`is_exempt`) and authentication are exempt. The controller counts topic changes: it rejects newer
clients (THROTTLING_QUOTA_EXCEEDED) and throttles older ones (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.metadata.quota_names import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from broker.security.quotas.quotas import BYTES_MAX
from kafka_ds.protocol.codec import encode_parts
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.frame import LENGTH_BYTES
from kafka_ds.protocol.messages import FetchRequest, FetchResponse, ShareFetchResponse
from kafka_ds.protocol.types import NO_UUID

if TYPE_CHECKING:
    from broker.config.loader import BrokerConfig
    from broker.metadata.image import MetadataImage
    from broker.registry import RequestContext, Served
    from broker.replica.serving.fetch_sessions import FetchSessionCache
    from broker.security.quotas.quotas import ClientQuotas

_EXEMPT = frozenset({"SaslHandshake", "SaslAuthenticate"})


class Unanswered(NamedTuple):
    """Stands for the response of a request without one (acks=0): how long to mute the connection."""

    throttle_ms: int


class Throttled(list[Any]):
    """An encoded response that mutes its connection (KIP-219); without parts if the request has none."""

    __slots__ = ("throttle_ms",)

    def __init__(self, parts: list[Any], throttle_ms: int) -> None:
        super().__init__(parts)
        self.throttle_ms = throttle_ms


class ThrottledRefusal(KafkaError):
    """An error for the whole request, with the throttle time of its connection."""

    def __init__(self, error: KafkaError, throttle_ms: int) -> None:
        super().__init__(error.code, error.message)
        self.throttle_ms = throttle_ms


class TopicMutation(NamedTuple):
    """How an API changes topics: its request and response fields, and the partitions that an element changes."""

    fields: tuple[str, ...]
    answers: str
    partitions_of: Callable[[Any, MetadataImage, BrokerConfig], int]
    strict_since: int


def _created(topic: Any, _: MetadataImage, config: BrokerConfig) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return topic.num_partitions if topic.num_partitions > 0 else config.num_partitions


def _added(topic: Any, image: MetadataImage, _: BrokerConfig) -> int:
    known = image.topics.get(topic.name)
    return max(topic.count - len(known.partitions), 0) if known is not None else 0


def _deleted(topic: Any, image: MetadataImage, _: BrokerConfig) -> int:
    name = topic if isinstance(topic, str) else topic.name
    # A topic that is given by id has no name.
    known = image.topics.get(name) if name is not None else image.topics_by_id.get(topic.topic_id)
    return len(known.partitions) if known is not None else 0


MUTATIONS = {
    "CreateTopics": TopicMutation(("topics",), "topics", _created, 6),
    "CreatePartitions": TopicMutation(("topics",), "results", _added, 3),
    "DeleteTopics": TopicMutation(("topics", "topic_names"), "responses", _deleted, 5),
}


class Throttling:
    """One request's use of its client's quotas."""

    __slots__ = (
        "_client_id",
        "_context",
        "_quotas",
        "_reserved",
        "_served",
        "_size_bytes",
        "_mutations",
        "_throttle_ms",
        "_user",
    )

    def __init__(
        self, quotas: ClientQuotas, served: Served, context: RequestContext, size_bytes: int
    ) -> None:
        """`size_bytes` is the size of the request."""
        self._quotas = quotas
        self._served = served
        self._context = context
        self._size_bytes = size_bytes
        self._user = context.principal.name
        self._client_id = context.header.client_id or ""
        self._throttle_ms = 0
        # Partitions that this request asks to change, by topic.
        self._mutations: Counter[str] = Counter()
        self._reserved = 0.0

    def mutations(self, request: Any) -> tuple[str, list[Any], list[Any]] | None:
        """For a request that changes topics at the active controller: its field, allowed and rejected elements."""
        mutation = MUTATIONS.get(self._served.name)
        node, header = self._context.broker, self._context.header
        if mutation is None or not node.metadata_driver.is_active:
            return None
        field = next((each for each in mutation.fields if getattr(request, each)), None)
        if field is None or getattr(request, "validate_only", False):
            return None
        strict = header.api_version >= mutation.strict_since
        allowed: list[Any] = []
        refused: list[Any] = []
        for item in getattr(request, field):
            wait_ms = 0
            if strict:
                wait_ms = self._quotas.mutation_wait_ms(self._user, self._client_id, self._now_ms())
            if wait_ms:
                refused.append(item)
                self._wait(CONTROLLER_MUTATION_RATE, wait_ms)
                continue
            allowed.append(item)
            count = mutation.partitions_of(item, node.metadata, node.config)
            self._mutations[_key_of(item)] += count
            self._reserved += self._quotas.reserve_mutations(
                self._user, self._client_id, count, self._now_ms()
            )
        return field, allowed, refused

    def answered(self, request: Any, response: Any, worked_s: float) -> Any:
        """The response with its throttle time, or the response that replaces it."""
        name = self._served.name
        now_ms, user, client_id = self._now_ms(), self._user, self._client_id
        is_fetch = name == "Fetch"
        if name not in _EXEMPT:
            wait_ms = self._quotas.worked(user, client_id, worked_s, now_ms)
            self._wait(REQUEST_PERCENTAGE, wait_ms)
        if name == "Produce":
            wait_ms = self._quotas.produced(user, client_id, self._size_bytes, now_ms)
            self._wait(PRODUCER_BYTE_RATE, wait_ms)
        if name == "ShareFetch":
            self._sent(response, now_ms)
        if is_fetch:
            return self._fetched(request, response, now_ms)
        if self._mutations:
            self._mutated(response, now_ms)
        if response is None:
            return Unanswered(self._throttle_ms) if self._throttle_ms else None
        answered_ms = getattr(response, "throttle_time_ms", None)
        if answered_ms is not None and answered_ms < self._throttle_ms:
            response.throttle_time_ms = self._throttle_ms
        return response

    def refused(self, error: KafkaError, worked_s: float) -> KafkaError:
        """The error with its throttle time: a failed request uses request time, too."""
        self.give_back()
        if self._served.name not in _EXEMPT:
            self._wait(
                REQUEST_PERCENTAGE,
                self._quotas.worked(self._user, self._client_id, worked_s, self._now_ms()),
            )
        return ThrottledRefusal(error, self._throttle_ms) if self._throttle_ms else error

    def give_back(self) -> None:
        """Return the reserved mutation tokens."""
        if self._reserved:
            self._quotas.give_back_mutations(
                self._user, self._client_id, self._reserved, self._now_ms()
            )
            self._reserved = 0.0

    def _mutated(self, response: Any, now_ms: int) -> None:
        """Count only the changes that succeeded."""
        self.give_back()
        mutation = MUTATIONS[self._served.name]
        # A topic that was given by id has its name in the response.
        changed = {
            key
            for each in getattr(response, mutation.answers)
            if not each.error_code
            for key in (each.name, getattr(each, "topic_id", NO_UUID).hex())
        }
        count = sum(count for key, count in self._mutations.items() if key in changed)
        wait_ms = self._quotas.mutated(self._user, self._client_id, count, now_ms)
        if self._context.header.api_version < mutation.strict_since:
            self._wait(CONTROLLER_MUTATION_RATE, wait_ms)

    def _fetched(
        self, request: FetchRequest, response: FetchResponse, now_ms: int
    ) -> FetchResponse:
        user, client_id = self._user, self._client_id
        size_bytes = self._sent(response, now_ms)
        if not self._throttle_ms:
            return response
        self._quotas.unfetched(user, client_id, size_bytes, now_ms)
        sessions: FetchSessionCache = self._context.broker.fetch_manager.sessions
        return FetchResponse(
            throttle_time_ms=self._throttle_ms,
            error_code=response.error_code,
            session_id=sessions.discard(request, response),
            responses=[],
        )

    def _sent(self, response: Any, now_ms: int) -> int:
        """Count a response with records, and return its size."""
        user, client_id = self._user, self._client_id
        size_bytes = 0
        if self._quotas.quotas.of(CONSUMER_BYTE_RATE, user, client_id) is not None:
            size_bytes = _answer_bytes(response, self._context.header.api_version)
        wait_ms = self._quotas.fetched(user, client_id, size_bytes, now_ms)
        self._wait(CONSUMER_BYTE_RATE, wait_ms)
        return size_bytes

    def _wait(self, name: str, wait_ms: int) -> None:
        if wait_ms:
            self._quotas.throttled(name, self._user, self._client_id, wait_ms)
            self._throttle_ms = max(self._throttle_ms, wait_ms)

    def _now_ms(self) -> int:
        return self._context.broker.clock.monotonic_ms()


def is_exempt(served: Served, request: Any) -> bool:
    """Whether a request is exempt from quotas: fetches of followers and inter-broker requests."""
    # MaintainTable is kafka-ds only, but clients send it.
    is_inter_broker = served.internal and served.name != "MaintainTable"
    return is_inter_broker or (served.name == "Fetch" and _is_follower(request))


def fetch_bytes_max(context: RequestContext) -> int:
    """The largest fetch that the consumer's quota allows."""
    quotas = context.broker.security.quotas
    if not quotas.is_limiting:
        return BYTES_MAX
    return quotas.fetch_bytes_max(context.principal.name, context.header.client_id or "")


def _key_of(item: Any) -> str:
    """A topic of a request: by name, or by id where it has none."""
    if isinstance(item, str):
        return item
    name: str | None = item.name
    return name if name is not None else item.topic_id.hex()


def _answer_bytes(response: FetchResponse | ShareFetchResponse, version: int) -> int:
    """The size of a response as in Kafka's FetchResponse.sizeOf: the length prefix and the message."""
    return LENGTH_BYTES + sum(map(len, encode_parts(response, version)))


def _is_follower(request: Any) -> bool:
    state = request.replica_state
    replica_id: int = state.replica_id if state is not None else request.replica_id
    return replica_id >= 0
