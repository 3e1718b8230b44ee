"""Shell: a small Kafka client: metadata, leaders, coordinators, offsets, settings.

Every public method retries until it has a response, a final error, or ``kafka.default.api.timeout.ms`` expires, with
exponential backoff from ``kafka.retry.backoff.ms``. After a broker's failure its connection is closed and the metadata
are requested again. Only for writers do metadata requests let brokers create topics (auto.create.topics.enable).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Final, TypeVar

from kafka_ds.client.connection import Connection
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import (
    AuthenticationRefused,
    BrokerTimeout,
    BrokerUnreachable,
    ClientError,
    ConnectionRefused,
    NoSuchHost,
    TopicGone,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.leader_epoch_end import LeaderEpochEnd
from kafka_ds.protocol.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from kafka_ds.protocol.messages.configs import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    DescribeConfigsResource,
)
from kafka_ds.protocol.messages.data import CONSUMER
from kafka_ds.protocol.messages.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    ListOffsetsPartition,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kafka_ds.protocol.topic_partition import TopicPartition

LOGGER = logging.getLogger("kafka_ds.client")
T = TypeVar("T")

EARLIEST_LOCAL_VERSION: Final = 8  # KIP-405
COORDINATOR_KEYS_VERSION: Final = 4  # KIP-699
BRIEF_MS: Final = 20
# A leader that is waited for is warned of after this time.
SILENT_S: Final = 2.0
# How long an address that looks wrong is retried: a host name may be unknown while pods are restarted (Kubernetes), and
# brokers may be started together with the query.
PATIENCE_MS: Final[dict[type[ClientError], int]] = {NoSuchHost: 10_000, ConnectionRefused: 15_000}

_ABSENT: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A partition's leader (-1: none), and its epoch."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as the metadata has it."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: Mapping[int, Leader] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAnswer:
    """A leader's response to ListOffsets; ``offset`` is -1 if no record is at or after the timestamp."""

    offset: int
    leader_epoch: int


class CoordinatorType(IntEnum):
    """The key type of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Cluster:
    """The brokers behind ``kafka.bootstrap.servers``. Not for use by several threads at once."""

    def __init__(self, settings: ClientSettings, *, creates_topics: bool = False) -> None:
        self.settings = settings
        self._creates_topics = creates_topics
        self._brokers: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._topics: dict[str, Topic] = {}
        self._coordinators: dict[tuple[CoordinatorType, str], tuple[str, int]] = {}
        self._warned_of_silence = False
        # Which problem was warned of since the last answer.
        self._warned_of = ""

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- topics and leaders ---------------------------------------------------------------------

    def topics(self, names: Collection[str] | None) -> dict[str, Topic]:
        """The topics that exist among ``names``, or (None) all, internal ones included."""
        return self.persist("Metadata", lambda: self._fetch_metadata(names))

    def has_topic(self, name: str) -> bool:
        """Whether there is such a topic; it is not created."""
        return bool(self.persist("Metadata", lambda: self._fetch_metadata([name], creates=False)))

    def _fetch_metadata(
        self, names: Collection[str] | None, *, creates: bool = True
    ) -> dict[str, Topic]:
        wanted = None if names is None else [MetadataRequestTopic(name=n) for n in sorted(names)]
        request = MetadataRequest(
            topics=wanted,
            allow_auto_topic_creation=creates and self._creates_topics and bool(wanted),
        )
        answer = self.any_broker().call(request, MetadataResponse)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), "Metadata")
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        found: dict[str, Topic] = {}
        for topic in answer.topics:
            code = ErrorCode(topic.error_code)
            if code in _ABSENT or topic.name is None:
                continue
            if code != ErrorCode.NONE:
                raise KafkaError(code, f"topic {topic.name}")
            found[topic.name] = Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                internal=topic.is_internal,
                partitions={
                    p.partition_index: Leader(node_id=p.leader_id, epoch=p.leader_epoch)
                    for p in topic.partitions
                },
            )
        self._topics.update(found)
        for name in (names or ()) if names is not None else list(self._topics):
            if name not in found:
                self._topics.pop(name, None)
        return found

    def leader(
        self, partition: TopicPartition, *, refresh: bool = False
    ) -> tuple[Connection, Leader]:
        """A connection to the partition's leader, and its epoch.

        Raises:
            TopicGone: there is no such topic or partition.
        """

        def attempt() -> tuple[Connection, Leader]:
            address, leader = self._find_leader(partition, refresh=refresh)
            return self.connection(address), leader

        return self.persist(f"the leader of {partition}", attempt)

    def leader_address(
        self, partition: TopicPartition, *, refresh: bool = False
    ) -> tuple[str, int]:
        """The address of the partition's leader, for callers with their own connections.

        Raises:
            TopicGone: there is no such topic or partition.
        """
        return self.persist(
            f"the leader of {partition}",
            lambda: self._find_leader(partition, refresh=refresh)[0],
        )

    def _find_leader(
        self, partition: TopicPartition, *, refresh: bool
    ) -> tuple[tuple[str, int], Leader]:
        name, number = partition
        if refresh or name not in self._topics:
            self._fetch_metadata([name])
        leader = self.topic(name).partitions.get(number)
        if leader is None:
            raise TopicGone(f"topic {name} has no partition {number}")
        if leader.node_id not in self._brokers:
            self._topics.pop(name, None)
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        return self._brokers[leader.node_id], leader

    def topic(self, name: str) -> Topic:
        """The cached metadata of a topic.

        Raises:
            TopicGone: there are none.
        """
        if name not in self._topics:
            raise TopicGone(f"there is no topic {name}")
        return self._topics[name]

    def forget(self, name: str) -> None:
        """Drop the cached metadata of a topic."""
        self._topics.pop(name, None)

    def partition_count(self, name: str) -> int:
        """The number of partitions of a topic; waits for a topic that is being created.

        Raises:
            BrokerTimeout: it does not exist, and no broker creates it.
        """

        def attempt() -> int:
            found = self._fetch_metadata([name]).get(name)
            if found is None or not found.partitions:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            return len(found.partitions)

        return self.persist(f"topic {name}", attempt)

    # -- offsets --------------------------------------------------------------------------------

    def offsets(
        self, questions: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> dict[TopicPartition, OffsetAnswer]:
        """The offset of each partition's timestamp; -1 requests the end, -2 the start.

        The end is the last stable offset with ``read_committed``, else the high watermark.
        """
        ask = partial(self._list_offsets, isolation_level=int(read_committed))
        return self._ask_leaders("ListOffsets", questions, ask)

    def _ask_leaders(
        self,
        api: str,
        questions: Mapping[TopicPartition, int],
        ask: Callable[
            [Connection, Collection[TopicPartition], Mapping[TopicPartition, int]],
            dict[TopicPartition, T],
        ],
    ) -> dict[TopicPartition, T]:
        """Ask each leader about its partitions, and again about those that got no answer."""
        answers: dict[TopicPartition, T] = {}

        def attempt() -> dict[TopicPartition, T]:
            missing = {tp: question for tp, question in questions.items() if tp not in answers}
            for connection, partitions in self.by_leader(missing):
                answers.update(ask(connection, partitions, missing))
            return answers

        return self.persist(api, attempt)

    def _list_offsets(
        self,
        connection: Connection,
        partitions: Collection[TopicPartition],
        questions: Mapping[TopicPartition, int],
        *,
        isolation_level: int,
    ) -> dict[TopicPartition, OffsetAnswer]:
        # A cluster without tiered storage has only local records.
        tiers = connection.version_of(ListOffsetsRequest) >= EARLIEST_LOCAL_VERSION

        def timestamp(partition: TopicPartition) -> int:
            asked = questions[partition]
            return EARLIEST if asked == EARLIEST_LOCAL and not tiers else asked

        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=isolation_level,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=number,
                            timestamp=timestamp(TopicPartition(name, number)),
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(partitions).items()
            ],
            timeout_ms=self.settings.request_timeout_ms,
        )
        answer = connection.call(request, ListOffsetsResponse)
        found: dict[TopicPartition, OffsetAnswer] = {}
        for topic in answer.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                self._check(ErrorCode(p.error_code), tp)
                found[tp] = OffsetAnswer(offset=p.offset, leader_epoch=p.leader_epoch)
        return found

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, LeaderEpochEnd]:
        """The end offsets of these leader epochs in the logs of the present leaders (KIP-320)."""
        return self._ask_leaders("OffsetForLeaderEpoch", epochs, self._list_epoch_ends)

    def _list_epoch_ends(
        self,
        connection: Connection,
        partitions: Collection[TopicPartition],
        epochs: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, LeaderEpochEnd]:
        request = OffsetForLeaderEpochRequest(
            replica_id=CONSUMER,
            topics=[
                OffsetForLeaderTopic(
                    topic=name,
                    partitions=[
                        OffsetForLeaderPartition(
                            partition=number, leader_epoch=epochs[TopicPartition(name, number)]
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(partitions).items()
            ],
        )
        answer = connection.call(request, OffsetForLeaderEpochResponse)
        found: dict[TopicPartition, LeaderEpochEnd] = {}
        for topic in answer.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.topic, p.partition)
                self._check(ErrorCode(p.error_code), tp)
                found[tp] = LeaderEpochEnd(epoch=p.leader_epoch, end_offset=p.end_offset)
        return found

    # -- settings -------------------------------------------------------------------------------

    def broker_setting(self, name: str) -> str | None:
        """The value of a broker setting; None if the broker does not know the setting."""

        def attempt() -> str | None:
            self._fetch_metadata([])
            if not self._brokers:
                return None
            node_id, address = min(self._brokers.items())
            return _setting(self.connection(address), BROKER_RESOURCE, str(node_id), name)

        return self.persist("DescribeConfigs", attempt)

    def topic_setting(self, topic: str, name: str) -> str | None:
        """The value of a topic's setting, its own or an inherited one; None if there is no such setting.

        Raises:
            KafkaError: TOPIC_AUTHORIZATION_FAILED without the right DESCRIBE_CONFIGS.
        """
        return self.persist(
            f"settings of topic {topic}",
            lambda: _setting(self.any_broker(), TOPIC_RESOURCE, topic, name),
        )

    # -- brokers --------------------------------------------------------------------------------

    def any_broker(self) -> Connection:
        """A connection to any broker.

        Raises:
            BrokerUnreachable: no broker answers; the message names each.
            NoSuchHost: no host name can be resolved.
            ConnectionRefused: all refuse connections or have an unknown host name, and have done so in this process.
        """
        addresses = dict.fromkeys([*self._brokers.values(), *self.settings.bootstrap_servers])
        open_ones = [a for a in addresses if a in self._connections and self._connections[a].idle]
        problems: list[ClientError] = []
        for address in [*open_ones, *(a for a in addresses if a not in open_ones)]:
            try:
                return self.connection(address)
            except AuthenticationRefused:
                raise
            except ClientError as problem:
                problems.append(problem)
        kind: type[BrokerUnreachable] = BrokerUnreachable
        if all(isinstance(p, NoSuchHost) for p in problems):
            kind = NoSuchHost
        elif all(isinstance(p, NoSuchHost | ConnectionRefused) for p in problems):
            kind = ConnectionRefused
        raise kind(
            f"no broker of option 'kafka.bootstrap.servers' answers: {'; '.join(map(str, problems))}"
        )

    def addresses(self) -> dict[int, tuple[str, int]]:
        """The addresses of the live brokers, by node id."""

        def attempt() -> dict[int, tuple[str, int]]:
            self._fetch_metadata([])
            return dict(self._brokers)

        return self.persist("the brokers", attempt)

    def connection(self, address: tuple[str, int]) -> Connection:
        """The connection to a broker; one that is not idle is closed and replaced."""
        connection = self._connections.get(address)
        if connection is None or not connection.idle:
            if connection is not None:
                connection.close()
            connection = self._connections[address] = self.new_connection(address)
        return connection

    def new_connection(self, address: tuple[str, int]) -> Connection:
        """A new connection, which the caller closes."""
        return Connection(*address, self.settings)

    def coordinated(
        self, kind: CoordinatorType, key: str, what: str, attempt: Callable[[Connection], T]
    ) -> T:
        """Call the coordinator of a group or a transactional id; it is looked up again after every error."""

        def attempt_it() -> T:
            try:
                return attempt(self.connection(self._coordinator(kind, key)))
            except (KafkaError, BrokerUnreachable, BrokerTimeout):
                self._coordinators.pop((kind, key), None)
                raise

        return self.persist(f"{what} of {kind.name.lower()} {key}", attempt_it)

    def _coordinator(self, kind: CoordinatorType, key: str) -> tuple[str, int]:
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        connection = self.any_broker()
        if connection.version_of(FindCoordinatorRequest) >= COORDINATOR_KEYS_VERSION:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            (found,) = connection.call(request, FindCoordinatorResponse).coordinators
        else:
            request = FindCoordinatorRequest(key=key, key_type=kind)
            found = connection.call(request, FindCoordinatorResponse)  # type: ignore[assignment]
        if found.error_code:
            what = found.error_message or f"coordinator of {kind.name.lower()} {key}"
            raise KafkaError(ErrorCode(found.error_code), what)
        self._coordinators[kind, key] = (found.host, found.port)
        return found.host, found.port

    def by_leader(
        self, partitions: Collection[TopicPartition]
    ) -> list[tuple[Connection, list[TopicPartition]]]:
        """The partitions by connection to their leader; to be called within `persist`.

        Raises:
            TopicGone: there is no such topic or partition.
        """
        unknown = sorted({name for name, _ in partitions} - set(self._topics))
        if unknown:
            self._fetch_metadata(unknown)
        leaders: dict[tuple[str, int], list[TopicPartition]] = {}
        for partition in sorted(partitions):
            self._find_leader(partition, refresh=False)
            node = self._topics[partition[0]].partitions[partition[1]].node_id
            leaders.setdefault(self._brokers[node], []).append(partition)
        return [(self.connection(address), found) for address, found in leaders.items()]

    def _check(self, code: ErrorCode, partition: TopicPartition) -> None:
        if code != ErrorCode.NONE:
            self.forget(partition[0])
            raise KafkaError(code, str(partition))

    def persist(self, what: str, attempt: Callable[[], T]) -> T:
        """Retry on retriable errors until ``kafka.default.api.timeout.ms`` expires.

        Raises:
            BrokerTimeout: it expired; the message has the request and the last error.
            NoSuchHost, ConnectionRefused: for `PATIENCE_MS` no bootstrap server's host name could be resolved, or none
                accepted a connection, nor had in this process.
            KafkaError: an error that is not retriable.
        """
        settings = self.settings
        began_at = time.monotonic()
        deadline = began_at + settings.default_api_timeout_ms / 1_000
        hopeless_until: dict[type[Exception], float] = {}
        pause_ms = settings.retry_backoff_ms
        while True:
            problem: ClientError | KafkaError
            try:
                answer = attempt()
                self._warned_of = ""
                return answer
            except (BrokerUnreachable, BrokerTimeout) as found:
                self._topics.clear()
                if type(found) in PATIENCE_MS and not self._brokers:
                    now = time.monotonic()
                    patience_s = PATIENCE_MS[type(found)] / 1_000
                    ends_at = hopeless_until.setdefault(
                        type(found), min(deadline, now + patience_s)
                    )
                    if now + pause_ms / 1_000 >= ends_at:
                        raise type(found)(f"{found}; tried for {now - began_at:.1f} s") from None
                self._warn_of_silence(found)
                problem = found
            except KafkaError as found:
                if not found.code.retriable:
                    raise
                problem = found
            if time.monotonic() + pause_ms / 1_000 >= deadline:
                raise BrokerTimeout(
                    f"{what}: timed out after kafka.default.api.timeout.ms="
                    f"{settings.default_api_timeout_ms}; last error: {problem}"
                ) from problem
            self._warn_of_wait(problem, began_at, deadline)
            if _is_brief(problem):
                time.sleep(min(pause_ms, BRIEF_MS) / 1_000)
                continue
            time.sleep(pause_ms / 1_000)
            pause_ms = min(max(1, pause_ms) * 2, settings.retry_backoff_max_ms)

    def _warn_of_wait(
        self, problem: ClientError | KafkaError, began_at: float, deadline: float
    ) -> None:
        """Warn once of a partition without a leader, or of a broker that is known and cannot be reached."""
        what = str(problem)
        if isinstance(problem, KafkaError) and problem.code == ErrorCode.LEADER_NOT_AVAILABLE:
            what = f"{problem.message} has no leader"
        elif not isinstance(problem, BrokerUnreachable) or not self._brokers:
            return
        now = time.monotonic()
        if now - began_at >= SILENT_S and what != self._warned_of:
            self._warned_of = what
            LOGGER.warning("%s; retrying for up to %.0f s", what, deadline - now)

    def _warn_of_silence(self, problem: ClientError) -> None:
        """Warn of a wrong address at once, and not only after the timeout."""
        if self._brokers or self._warned_of_silence:
            return
        self._warned_of_silence = True
        limit_ms = self.settings.default_api_timeout_ms
        limit = f"kafka.default.api.timeout.ms={limit_ms}"
        if type(problem) in PATIENCE_MS and PATIENCE_MS[type(problem)] < limit_ms:
            limit = f"{PATIENCE_MS[type(problem)] / 1_000:g} s"
        LOGGER.warning("%s; retrying for %s", problem, limit)


def _setting(connection: Connection, resource_type: int, resource: str, name: str) -> str | None:
    wanted = DescribeConfigsResource(
        resource_type=resource_type, resource_name=resource, configuration_keys=[name]
    )
    request = DescribeConfigsRequest(resources=[wanted])
    answer = connection.call(request, DescribeConfigsResponse)
    for result in answer.results:
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), result.error_message)
    configs = (config for result in answer.results for config in result.configs)
    return next((config.value for config in configs if config.name == name), None)


def _is_brief(problem: ClientError | KafkaError) -> bool:
    """Whether a transaction is about to end: like the Java client, retry soon."""
    return isinstance(problem, KafkaError) and problem.code == ErrorCode.CONCURRENT_TRANSACTIONS


def by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic, in order."""
    groups: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        groups.setdefault(topic, []).append(partition)
    return groups
