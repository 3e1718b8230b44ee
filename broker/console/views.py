"""Shell: the data of the console's pages, as values for JSON.

It calls this broker's handlers as the logged-in principal, or reads their state. A view requires the ACLs of the
equivalent API: cluster and sizes DESCRIBE on the cluster, topics DESCRIBE, records READ. Offsets, sizes and lag are
those of replicas on this broker, groups those that it coordinates; what only other brokers know is null. Long loops
yield to clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from broker.config.describe import ConfigSource
from broker.console.records import RECORDS_MAX, JsonRow, RecordsPage
from broker.console.table_history import history
from broker.console.threads import SingleThread
from broker.coordinator.group import group_admin
from broker.log.values import READ_COMMITTED
from broker.metadata.acls import AclOperation, ResourceType
from broker.principal import ANONYMOUS
from broker.security.authorization.permissions import may, sees
from broker.server.local_request import handle_locally
from kafka_ds.delta.actions import CorruptLog
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeShareGroupOffsetsRequest,
    FetchRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)
from kafka_ds.protocol.messages.configs import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    DescribeConfigsResource,
)
from kafka_ds.protocol.messages.data import CONSUMER, FetchPartition, FetchTopic
from kafka_ds.protocol.messages.group_admin import ListedGroup
from kafka_ds.protocol.messages.group_offsets import OffsetFetchRequestGroup
from kafka_ds.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from kafka_ds.protocol.messages.share_groups import DescribeShareGroupOffsetsRequestGroup
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import CorruptRecord
from kafka_ds.topic.names import topic_table
from kafka_ds.version import VERSION

if TYPE_CHECKING:
    from broker.metadata.events import PartitionRegistration
    from broker.metadata.image import TopicImage
    from broker.registry import RequestContext
    from broker.replica.follower.partition import FollowerPartition
    from broker.replica.leader.partition import LeaderPartition
    from broker.server.dispatch import Dispatcher
    from broker.server.metrics import NetMetrics

PARTITIONS_AT_ONCE = 200
SEGMENTS_MAX = 500
FETCH_BYTES_MAX = 1 << 20
# A cold read that takes longer than remote.fetch.max.wait.ms returns no records and continues for the next fetch.
COLD_TRIES_MAX = 12
NUMBER_MAX = 2**63 - 1
HISTORY_SHOWN = 20
HISTORY_MAX = 100
_REFUSALS = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)

Query: TypeAlias = Mapping[str, str]


class ViewUnavailable(Exception):
    """The view cannot be shown; the text is for the operator."""

    def __init__(self, text: str, status: str = "404 Not Found") -> None:
        super().__init__(text)
        self.status = status


class Views:
    """The views of one broker."""

    def __init__(self, dispatcher: Dispatcher, net: NetMetrics) -> None:
        self._broker = dispatcher.broker
        self._dispatcher = dispatcher
        self._net = net
        # Decoding records in Python must not block the event loop, and the lake may not answer.
        self._records_thread, self._history_thread = (
            SingleThread("records"),
            SingleThread("history"),
        )
        self.by_path: Mapping[str, Callable[[Query, RequestContext], Awaitable[Any]]] = {
            "cluster": self._cluster,
            "topics": self._topics,
            "topic": self._topic,
            "partition": self._partition,
            "history": self._history,
            "records": self._records,
            "groups": self._groups,
            "group": self._group,
            "settings": self._settings,
            "metrics": self._metrics,
        }

    def stop(self) -> None:
        """Start nothing more."""
        self._records_thread.stop()
        self._history_thread.stop()

    async def _handle(self, context: RequestContext, request: Any) -> Any:
        return await handle_locally(self._dispatcher, request, context)

    # -- cluster ------------------------------------------------------------------------------

    async def _cluster(self, query: Query, context: RequestContext) -> JsonRow:
        image = self._broker.metadata
        topics = [each for each in image.topics.values() if sees(context, each.name)]
        is_operator = may(context, AclOperation.DESCRIBE, log_if_denied=False)
        return {
            "user": str(context.principal) if context.principal != ANONYMOUS else None,
            "cluster_id": image.cluster_id,
            "version": VERSION,
            "node_id": self._broker.config.node_id,
            "controller_id": image.controller_id,
            "metadata_version": image.version,
            "topics": len(topics),
            "partitions": sum(len(each.partitions) for each in topics),
            "brokers": [
                {
                    "id": each.broker_id,
                    "rack": each.rack,
                    "endpoints": [
                        f"{e.listener}://{e.host}:{e.port}"
                        for e in each.endpoints
                        # As in Metadata and DescribeCluster.
                        if e.listener == context.listener or is_operator
                    ],
                    "is_controller": each.broker_id == image.controller_id,
                    "is_fenced": each.fenced,
                    "is_stopping": each.in_controlled_shutdown,
                }
                for each in sorted(image.brokers.values(), key=lambda each: each.broker_id)
            ],
        }

    async def _metrics(self, query: Query, context: RequestContext) -> JsonRow:
        """Totals; the page computes rates."""
        if not may(context, AclOperation.DESCRIBE):
            raise _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        net = self._net
        counters = {
            metric.name: value
            for metric, labels, value in self._broker.replica_manager.topic_metrics.samples()
            if not labels
        }
        return {
            "now_ms": self._broker.clock.monotonic_ms(),
            "bytes_in": net.bytes_in,
            "bytes_out": net.bytes_out,
            "connections": net.connections,
            "topics": counters,
            "requests": {
                each.name: {
                    "count": each.times.count,
                    "seconds": each.seconds,
                    "p99_ms": each.times.quantiles((0.99,))[0] * 1000,
                    "errors": sum(each.errors.values()),
                }
                for each in (*net.apis.values(), net.followers)
                if each.times.count
            },
        }

    async def _settings(self, query: Query, context: RequestContext) -> list[JsonRow]:
        return await self._configs(context, BROKER_RESOURCE, str(self._broker.config.node_id))

    async def _configs(self, context: RequestContext, kind: int, name: str) -> list[JsonRow]:
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], include_documentation=True)
        (result,) = (await self._handle(context, request)).results
        _check(result.error_code)
        return [
            {
                "name": each.name,
                "value": each.value,
                "origin": ConfigSource(each.config_source).name,
                "is_secret": each.is_sensitive,
                "is_read_only": each.read_only,
                "says": each.documentation,
            }
            for each in result.configs
        ]

    # -- topics -------------------------------------------------------------------------------

    async def _topics(self, query: Query, context: RequestContext) -> list[JsonRow]:
        rows, seen = [], 0
        for topic in sorted(self._broker.metadata.topics.values(), key=lambda each: each.name):
            if not sees(context, topic.name):
                continue
            if seen >= PARTITIONS_AT_ONCE:
                seen = 0
                await asyncio.sleep(0)
            seen += len(topic.partitions)
            partitions = list(topic.partitions.items())
            registered = [each for _, each in partitions]
            here = [self._replica_row(context, topic.name, number) for number, _ in partitions]
            rows.append(
                {
                    "name": topic.name,
                    "is_internal": topic.is_internal,
                    "partitions": len(registered),
                    "replicas": max((len(each.replicas) for each in registered), default=0),
                    "under_replicated": sum(
                        len(each.isr) < len(each.replicas) for each in registered
                    ),
                    "offline": sum(each.leader < 0 for each in registered),
                    "local_bytes": _sum(each.get("local_bytes") for each in here),
                    "lake_bytes": _sum(each.get("lake_bytes") for each in here),
                }
            )
        return rows

    async def _topic(self, query: Query, context: RequestContext) -> JsonRow:
        topic = self._topic_of(query, context)
        rows = []
        for number, registration in sorted(topic.partitions.items()):
            rows.append(
                _registered(number, registration) | self._replica_row(context, topic.name, number)
            )
            if len(rows) % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return {
            "name": topic.name,
            "id": uuid_text(topic.topic_id),
            "is_internal": topic.is_internal,
            "partitions": rows,
            "settings": await self._settings_if_allowed(context, topic.name),
        }

    async def _settings_if_allowed(
        self, context: RequestContext, topic: str
    ) -> list[JsonRow] | None:
        try:
            return await self._configs(context, TOPIC_RESOURCE, topic)
        except ViewUnavailable:
            return None

    def _topic_of(self, query: Query, context: RequestContext) -> TopicImage:
        name = query.get("topic", "")
        if not may(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            raise _refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = self._broker.metadata.topics.get(name)
        if topic is None:
            raise ViewUnavailable(f"there is no topic {name}")
        return topic

    def _replica_row(self, context: RequestContext, topic: str, number: int) -> JsonRow:
        """The state of a replica on this broker; empty without one."""
        replica = self._broker.replica_manager.replica(topic, number)
        if replica is None:
            return {}
        log, remote_log_manager = replica.log, self._broker.remote_log_manager
        shows_sizes = _may_see_sizes(context)
        place = TopicPartition(topic, number)
        size = (
            remote_log_manager.metrics.remote_sizes.get(place)
            if remote_log_manager is not None
            else None
        )
        _, highest_offset_in_remote_storage = self._tiered(replica)
        return {
            "log_start_offset": log.log_start_offset,
            "local_log_start_offset": log.local_log_start_offset,
            "last_stable_offset": replica.last_stable_offset(),
            "high_watermark": replica.high_watermark,
            "log_end_offset": log.log_end_offset,
            "highest_offset_in_remote_storage": highest_offset_in_remote_storage,
            "local_bytes": log.size_bytes if shows_sizes else None,
            "lake_bytes": size.size_bytes if size is not None and shows_sizes else None,
            "lake_segments": size.segments if size is not None else None,
        }

    def _tiered(self, replica: LeaderPartition | FollowerPartition) -> tuple[int, int | None]:
        """The log start offset and the last tiered offset; None for a topic that is not tiered."""
        log, remote_log_manager = replica.log, self._broker.remote_log_manager
        if not log.config.remote_storage_enable:
            return log.log_start_offset, None
        # Leaders know what is copied; followers check it up to a minute later.
        end = (
            remote_log_manager.highest_offset_in_remote_storage(log.topic_id, log.partition)
            if remote_log_manager is not None
            else None
        )
        return log.log_start_offset, log.highest_offset_in_remote_storage if end is None else end

    async def _history(self, query: Query, context: RequestContext) -> list[JsonRow]:
        """The latest commits of a topic's table, newest first."""
        topic = self._topic_of(query, context)
        limit = min(max(_number(query, "limit", HISTORY_SHOWN), 1), HISTORY_MAX)
        try:
            rows = await self._history_thread.run(
                history, self._broker.store, topic_table(topic.name), limit
            )
        except (OSError, CorruptLog) as error:
            raise ViewUnavailable(f"the lake cannot be read: {error}", "502 Bad Gateway") from error
        # A predicate may contain record values.
        may_read = may(
            context, AclOperation.READ, ResourceType.TOPIC, topic.name, log_if_denied=False
        )
        hidden = {
            **({} if may_read else {"parameters": None}),
            **({} if _may_see_sizes(context) else {"bytes_added": None}),
        }
        return [row | hidden for row in rows]

    # -- one partition ------------------------------------------------------------------------

    def _replica(
        self, query: Query, context: RequestContext
    ) -> tuple[TopicImage, int, LeaderPartition | FollowerPartition]:
        topic, number = self._topic_of(query, context), _number(query, "partition", 0)
        registration = topic.partitions.get(number)
        if registration is None:
            raise ViewUnavailable(f"{topic.name} has no partition {number}")
        replica = self._broker.replica_manager.replica(topic.name, number)
        if replica is None:
            raise ViewUnavailable(
                f"{TopicPartition(topic.name, number)} is not on this broker: open the console of broker "
                f"{registration.leader}, which leads it"
            )
        return topic, number, replica

    async def _partition(self, query: Query, context: RequestContext) -> JsonRow:
        topic, number, replica = self._replica(query, context)
        segments = list(replica.log.segments.all)
        row = self._replica_row(context, topic.name, number)
        shows_sizes = _may_see_sizes(context)
        remote_log_manager, end = (
            self._broker.remote_log_manager,
            row["highest_offset_in_remote_storage"],
        )
        gaps = (
            remote_log_manager.missing_of(topic.topic_id, number)
            if remote_log_manager is not None
            else []
        )
        start = row["log_start_offset"]
        return {
            "topic": topic.name,
            **_registered(number, topic.partitions[number]),
            **row,
            "segment_count": len(segments),
            "segments": [
                {
                    "base_offset": each.base_offset,
                    "next_offset": each.next_offset,
                    "size_bytes": each.size_bytes if shows_sizes else None,
                    "is_active": each.is_active,
                }
                for each in segments[-SEGMENTS_MAX:]
            ],
            "lake": list(without(start, end, gaps)) if end is not None else [],
            "gaps": [list(gap) for gap in gaps],
        }

    async def _records(self, query: Query, context: RequestContext) -> JsonRow:
        """Committed records from an offset or a timestamp on; without either the latest."""
        topic, number, replica = self._replica(query, context)
        limit = count = min(max(_number(query, "limit", 50), 1), RECORDS_MAX)
        start, end = replica.log.log_start_offset, replica.last_stable_offset()
        is_newest = not ("timestamp" in query or "offset" in query)
        if is_newest:
            offset = end - count
        elif "timestamp" in query:
            found = await self._offset_at(
                context, topic.name, number, _number(query, "timestamp", 0)
            )
            offset = end if found < 0 else found
        else:
            offset = _number(query, "offset", 0)
        offset = min(max(offset, start), end)
        page = await self._page(context, topic, number, offset)
        while is_newest and page.next_offset < end and count > 1:
            # Too large for one fetch: show fewer, but the latest.
            count //= 2
            offset = max(end - count, start)
            page = await self._page(context, topic, number, offset)
        if is_newest:
            rows, next_offset = (
                await self._records_thread.run(page.last_rows, count),
                page.next_offset,
            )
        else:
            rows, next_offset = await self._records_thread.run(page.first_rows, limit)
        return {
            "offset": rows[0]["offset"] if is_newest and rows else offset,
            "next_offset": next_offset,
            "log_start_offset": start,
            "last_stable_offset": end,
            "records": rows,
        }

    async def _offset_at(
        self, context: RequestContext, topic: str, number: int, timestamp_ms: int
    ) -> int:

        wanted = ListOffsetsPartition(partition_index=number, timestamp=timestamp_ms)
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            isolation_level=READ_COMMITTED,
            topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
        )
        (answer,) = (await self._handle(context, request)).topics[0].partitions
        _check(answer.error_code)
        offset: int = answer.offset
        return offset

    async def _page(
        self, context: RequestContext, topic: TopicImage, number: int, offset: int
    ) -> RecordsPage:
        data = await self._fetch(context, topic, number, offset)
        for _ in range(COLD_TRIES_MAX):
            if data.records or offset >= data.last_stable_offset:
                break
            data = await self._fetch(context, topic, number, offset)
        else:
            raise ViewUnavailable(
                "the lake did not answer in time: try again", "503 Service Unavailable"
            )
        try:
            return RecordsPage(data, offset)
        except CorruptRecord as error:
            raise ViewUnavailable(
                f"the records cannot be read: {error}", "502 Bad Gateway"
            ) from error

    async def _fetch(
        self, context: RequestContext, topic: TopicImage, number: int, offset: int
    ) -> Any:
        wanted = FetchPartition(
            partition=number, fetch_offset=offset, partition_max_bytes=FETCH_BYTES_MAX
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=READ_COMMITTED,
            topics=[FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[wanted])],
        )
        answer = await self._handle(context, request)
        _check(answer.error_code)
        (data,) = answer.responses[0].partitions
        _check(data.error_code)
        return data

    # -- groups -------------------------------------------------------------------------------

    async def _groups(self, query: Query, context: RequestContext) -> list[JsonRow]:
        answer = await self._handle(context, ListGroupsRequest())
        _check(answer.error_code)
        groups = sorted(answer.groups, key=lambda each: each.group_id)
        offsets = await self._offsets(context, groups)
        return [
            {
                "id": each.group_id,
                "state": each.group_state,
                "type": each.group_type,
                "partitions": len(offsets[each.group_id]),
                "lag": _sum(row["lag"] for row in offsets[each.group_id]),
                "lag_in_lake": _sum(row["lag_in_lake"] for row in offsets[each.group_id]),
            }
            for each in groups
        ]

    async def _group(self, query: Query, context: RequestContext) -> JsonRow:
        group_id = query.get("group", "")
        listed = {
            each.group_id: each
            for each in (await self._handle(context, ListGroupsRequest())).groups
        }
        if group_id not in listed:
            raise ViewUnavailable(f"this broker coordinates no group {group_id}")
        found = listed[group_id]
        request: Any = DescribeGroupsRequest(groups=[group_id])
        if found.group_type == group_admin.CONSUMER:
            request = ConsumerGroupDescribeRequest(group_ids=[group_id])
        elif found.group_type == group_admin.SHARE:
            request = ShareGroupDescribeRequest(group_ids=[group_id])
        elif found.group_type == group_admin.STREAMS:
            request = StreamsGroupDescribeRequest(group_ids=[group_id])
        answer = await self._handle(context, request)
        return {
            "id": group_id,
            "state": found.group_state,
            "type": found.group_type,
            "members": [
                {"id": each.member_id, "client_id": each.client_id, "host": each.client_host}
                for each in answer.groups[0].members
            ],
            "offsets": (await self._offsets(context, [found]))[group_id],
        }

    async def _offsets(
        self, context: RequestContext, groups: list[ListedGroup]
    ) -> dict[str, list[JsonRow]]:
        """The offsets of each group: what it has committed, with the lag behind the last stable offset here.

        A share group has a start offset and its own lag: records behind the start may be done with.
        """
        shares = [each.group_id for each in groups if each.group_type == group_admin.SHARE]
        others = [each.group_id for each in groups if each.group_type != group_admin.SHARE]
        found: dict[str, list[JsonRow]] = dict.fromkeys((*shares, *others), [])
        names = {id_: each.name for id_, each in self._broker.metadata.topics_by_id.items()}
        if others:
            wanted = [OffsetFetchRequestGroup(group_id=each, topics=None) for each in others]
            answer = await self._handle(context, OffsetFetchRequest(groups=wanted))
            for group in answer.groups:
                found[group.group_id] = [
                    self._lag_row(
                        names.get(topic.topic_id, topic.name),
                        each.partition_index,
                        each.committed_offset,
                    )
                    for topic in group.topics
                    for each in topic.partitions
                    if not each.error_code and each.committed_offset >= 0
                ]
                await asyncio.sleep(0)
        if shares:
            asked = [
                DescribeShareGroupOffsetsRequestGroup(group_id=each, topics=None) for each in shares
            ]
            answer = await self._handle(context, DescribeShareGroupOffsetsRequest(groups=asked))
            for group in answer.groups:
                found[group.group_id] = [
                    self._lag_row(topic.topic_name, each.partition_index, each.start_offset)
                    | {"lag": each.lag if each.lag >= 0 else None}
                    for topic in group.topics
                    for each in topic.partitions
                    if not each.error_code and each.start_offset >= 0
                ]
        for rows in found.values():
            rows.sort(key=lambda row: (row["topic"], row["partition"]))
        return found

    def _lag_row(self, topic: str, number: int, committed: int) -> JsonRow:
        replica = self._broker.replica_manager.replica(topic, number)
        end = replica.last_stable_offset() if replica is not None else None
        start, highest_offset_in_remote_storage = (
            self._tiered(replica) if replica is not None else (0, None)
        )
        in_lake = (
            None
            if highest_offset_in_remote_storage is None
            else max(0, highest_offset_in_remote_storage + 1 - max(committed, start))
        )
        return {
            "topic": topic,
            "partition": number,
            "committed_offset": committed,
            "end_offset": end,
            "lag": max(0, end - committed) if end is not None else None,
            "lag_in_lake": in_lake,
        }


def _may_see_sizes(context: RequestContext) -> bool:
    """Whether DescribeLogDirs would be authorized."""
    return may(context, AclOperation.DESCRIBE, log_if_denied=False)


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= NUMBER_MAX):
        raise ViewUnavailable(f"{name}={text[:50]} is not a non-negative number", "400 Bad Request")
    return int(text)


def _registered(number: int, registration: PartitionRegistration) -> JsonRow:
    return {
        "partition": number,
        "leader": registration.leader,
        "leader_epoch": registration.leader_epoch,
        "preferred_leader": registration.preferred_leader,
        "replicas": list(registration.replicas),
        "isr": list(registration.isr),
    }


def without(start: int, end: int, gaps: list[tuple[int, int]]) -> Iterator[list[int]]:
    """The inclusive ranges from `start` to `end` that no gap covers."""
    for first, last in sorted(gaps):
        if start <= min(first - 1, end):
            yield [start, min(first - 1, end)]
        start = max(start, last + 1)
    if start <= end:
        yield [start, end]


def _sum(values: Any) -> int | None:
    """The sum of the known values; None if none is known."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _refused(code: ErrorCode) -> ViewUnavailable:
    return ViewUnavailable(f"ACLs do not let you see this ({code.name})", "403 Forbidden")


def _check(code: int) -> None:
    if code in _REFUSALS:
        raise _refused(ErrorCode(code))
    if code:
        raise ViewUnavailable(f"the broker answers {ErrorCode(code).name}", "502 Bad Gateway")
