"""Shell: Fetch 4-18: reads batches from logs; waits for more if there are fewer than min_bytes.

`FetchProcessor` looks up what each partition has (`LogReadResult`; no data is touched), reads it from the log or from
the lake, and responds. With less than min_bytes the request waits as a `DelayedFetch`, which events complete. An error
concerns one partition and not the others of the request; consumers get nothing above their bound (the high watermark,
with read_committed the last stable offset). Sessions: `broker.replica.serving.fetch_sessions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from broker.handlers.common import LEADERSHIP_ERRORS, endpoints_of, leader_of
from broker.log.values import READ_COMMITTED, READ_UNCOMMITTED, LogRead
from broker.metadata.acls import AclOperation, ResourceType
from broker.registry import RequestContext, serves
from broker.replica.follower.partition import FollowerPartition
from broker.replica.leader.partition import LeaderPartition
from broker.replica.replica_manager import ReplicaManager
from broker.replica.serving.fetch_manager import LEADER_THROTTLED_REPLICAS, FetchManager
from broker.replica.serving.fetch_sessions import CachedPartition, FetchContext, IdlePartitions
from broker.replica.session_epochs import FINAL_EPOCH
from broker.replica.throttle import is_listed
from broker.security.authorization.permissions import authorizer_of, may
from broker.security.quotas.throttle import fetch_bytes_max
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import FetchRequest, FetchResponse
from kafka_ds.protocol.messages.data import (
    CONSUMER,
    FIRST_VERSION_WITH_TOPIC_IDS,
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartition,
    FetchPartitionData,
    FetchTopic,
)
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

FIRST_VERSION_WITH_ZSTD = 10
FIRST_VERSION_WITH_RACK = 11
NO_EPOCH = -1
# What is smaller is read and sent with less CPU (of 1 MiB sending it from the file takes 0.6 of that).
SENT_BYTES_MIN = 64 << 10
NO_RECORDS = b""

# Errors that Kafka counts as failed fetches: the client has made no mistake.
_OUR_FAULTS = frozenset(
    {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_SERVER_ERROR}
)

Replica = LeaderPartition | FollowerPartition
LogLookup = Callable[[FetchTopic, FetchPartition], "LogReadResult"]


@serves(FetchRequest, versions="4-18")
def fetch(
    request: FetchRequest, context: RequestContext
) -> FetchResponse | Awaitable[FetchResponse]:
    """Read from each partition, or wait until there is something to read.

    Versions: 5 log_start_offset; 7 sessions (KIP-227); 9 current_leader_epoch (KIP-320); 10 zstd; 11 rack_id
    (KIP-392); 12 flexible, last_fetched_epoch (KIP-595); 13 topic ids (KIP-516); 14 tiered storage (KIP-405);
    15 replica_state (KIP-903); 16 endpoints with NOT_LEADER_OR_FOLLOWER (KIP-951); 17 directory ids (KIP-853);
    18 the follower's high watermark (KIP-1166). Errors, each of one partition but those of sessions:
    - OFFSET_OUT_OF_RANGE outside of log start and log end; UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID;
      TOPIC_AUTHORIZATION_FAILED; UNSUPPORTED_COMPRESSION_TYPE for zstd before version 10 (no conversion).
    - FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH if the reader's current epoch is not this leader's; a
      diverging epoch, without an error, if the epoch of its last batch ended earlier here.
    - KAFKA_STORAGE_ERROR if the disk or the lake fails, or too many requests wait for the lake. Later than
      remote.fetch.max.wait.ms, or with the fetch quota used up (KIP-956), a partition has no records and no error.
    - For followers: UNKNOWN_LEADER_EPOCH for a broker that is no replica, NOT_LEADER_OR_FOLLOWER for an old
      broker epoch, OFFSET_MOVED_TO_TIERED_STORAGE for offsets that are only in the lake.
    - FETCH_SESSION_ID_NOT_FOUND for a closed session, INVALID_FETCH_SESSION_EPOCH for a request that is not the
      next one, FETCH_SESSION_TOPIC_ID_ERROR if names and ids are mixed.
    """
    fetch_context = _fetch_context(request, context)
    if fetch_context.error is not ErrorCode.NONE:
        return FetchResponse(error_code=fetch_context.error, responses=[])
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    processor = FetchProcessor(
        request, context, fetch_context, sends_files=context.client.sends_files
    )
    processor.find()
    may_wait = request.max_wait_ms > 0 and fetch_context.has_partitions
    if processor.is_urgent or not may_wait or processor.size_bytes >= processor.min_bytes:
        return processor.answer()
    return DelayedFetch(processor, request.max_wait_ms).future


def _fetch_context(request: FetchRequest, context: RequestContext) -> FetchContext:
    """All partitions that the request asks for, with those of its session."""
    if request.session_epoch == FINAL_EPOCH and not request.session_id:
        # As most clients do that know nothing of sessions.
        return FetchContext(topics=request.topics)
    broker = context.broker
    version = context.header.api_version
    replica_id, broker_epoch = replica_of(request)
    return broker.fetch_manager.sessions.begin(
        request,
        has_topic_ids=version >= FIRST_VERSION_WITH_TOPIC_IDS,
        replica_id=replica_id,
        now_ms=broker.clock.monotonic_ms(),
        basis=(version, broker_epoch, request.isolation_level, broker.metadata.version),
    )


class FetchProcessor:
    """One Fetch request being answered.

    - Budgets as in Kafka (KIP-74): at most `max_bytes` (and fetch.max.bytes) in all and `partition_max_bytes` of
      each partition, but the first partition with data gives at least one whole batch, so that a large batch
      cannot stop its reader. Batches go out whole, beginning with the one that holds the offset.
    - Records are sent from the file that they are in, where the connection can do that and it pays, else from the
      buffers that they were read into. A read that may wait for the disk is done in a thread, a read of offsets that
      are only in the lake by the tier; all reads of a response run at the same time.
    - A follower's fetch offset is the end of its log: the leader's view hears it when the request arrives, before
      the lookup, so that the answer has the resulting high watermark; not again after the request has waited.
    - A throttled follower (KIP-73) gets nothing of the partition, and no error, while the rate is exceeded.
    - Consumers may read from followers, below the follower's own high watermark (v11+, KIP-392).
    """

    def __init__(
        self,
        request: FetchRequest,
        context: RequestContext,
        fetch_context: FetchContext,
        *,
        sends_files: bool = False,
    ) -> None:
        """`fetch_context` is the request's place in its session; with `sends_files` records may be ranges of files."""
        self._request = request
        self._results = FetchResults(fetch_context)
        self._context = context
        self._node = context.broker
        version = context.header.api_version
        self._by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        self._is_before_zstd = version < FIRST_VERSION_WITH_ZSTD
        # Older consumers cannot handle a preferred read replica (KIP-392).
        self._may_follow = version >= FIRST_VERSION_WITH_RACK
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._replica_id, self._broker_epoch = replica_of(request)
        self.is_follower = self._replica_id > CONSUMER
        self._is_first_lookup = True
        manager: FetchManager = self._node.fetch_manager
        self._fetch_manager = manager
        self._select_replica = manager.select_replica if self._may_follow else None
        # Followers were checked for CLUSTER_ACTION, consumers are checked for each topic: a session may be older than
        # ACLs.
        self._authorizes = not self.is_follower and authorizer_of(context) is not None
        # Whether there is more to do than to read what a consumer asks for.
        self._is_special = self.is_follower or self._select_replica is not None
        # A file that is truncated and written again would change what a socket has taken from it and not sent. Of
        # consumers' records, which are committed, only an unclean election truncates some; of followers' any may be.
        self._sends_files = sends_files and not self.is_follower
        # A consumer's result depends on followers if it may be sent to one, and on ACLs if there are any.
        self._may_be_idle = not self._is_before_zstd and (
            self.is_follower or not (self._is_special or self._authorizes)
        )
        max_bytes = min(request.max_bytes, self._node.config.fetch_max_bytes)
        if not self.is_follower:
            max_bytes = min(max_bytes, fetch_bytes_max(context), manager.answer_bytes_max())
        self._max_bytes = max(max_bytes, 0)
        self.min_bytes = min(request.min_bytes, self._max_bytes)
        self.size_bytes = 0
        self.is_urgent = False

    # -- lookup -------------------------------------------------------------------------------

    def find(self) -> None:
        """Look up what there is now."""
        self.size_bytes = 0
        self.is_urgent = False
        self._results.find(self._find)
        if self._is_first_lookup and self.idle is not None:
            self.idle.heard(self._node.clock.monotonic_ms())
        self._is_first_lookup = False

    def find_again(self, advanced: Container[Replica]) -> None:
        """Look up the partitions that have advanced.

        Others that had nothing are not looked up again.
        """
        self.size_bytes = 0
        self.is_urgent = False
        self._results.find_again(self._find, advanced)

    @property
    def idle(self) -> IdlePartitions | None:
        """The session's idle partitions; None without a session."""
        session = self._results.fetch_context.session
        return session.idle if session is not None else None

    def join(self, cached: CachedPartition, partition: LeaderPartition) -> None:
        """This one was idle until now."""
        self._results.join(cached, partition)

    def _find(self, topic: FetchTopic, requested: FetchPartition) -> LogReadResult:
        result = LogReadResult(requested, no_records(requested.partition))
        left = self._max_bytes - self.size_bytes
        partition: Replica | None = None
        try:
            partition = self._locate(topic, requested)
            partition.check_epoch(requested.current_leader_epoch)
            result.partition = partition
            self._look_up(partition, result, min(requested.partition_max_bytes, left))
        except KafkaError as error:
            if self._is_awaited(partition):
                result.partition = partition
                return result
            result.data = no_records(requested.partition, error.code)
            result.is_urgent = True
        self.size_bytes += result.size_bytes
        self.is_urgent = self.is_urgent or result.is_urgent
        return result

    def _is_awaited(self, partition: Replica | None) -> bool:
        """Whether a consumer waits for its leader, as for records: the log is compared with the lake yet."""
        return (
            isinstance(partition, LeaderPartition)
            and not self.is_follower
            and partition.recovery is not None
        )

    def _locate(self, topic: FetchTopic, requested: FetchPartition) -> Replica:
        name = topic.topic
        if self._by_id:
            known = self._node.metadata.topics_by_id.get(topic.topic_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = known.name
        if self._authorizes and not may(self._context, AclOperation.READ, ResourceType.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        replicas: ReplicaManager = self._node.replica_manager
        led = replicas.find(name, requested.partition)
        if led is not None:
            return led
        if self._may_follow and not self.is_follower:
            replica = replicas.replica(name, requested.partition)
            if replica is not None:
                return replica
        raise KafkaError(replicas.why_absent(name, requested.partition))

    def _check_reader(self, partition: Replica, result: LogReadResult) -> bool:
        """Whether to read on: the reader's log has not diverged, and it should not read elsewhere."""
        requested, log = result.requested, partition.log
        if self.is_follower and isinstance(partition, LeaderPartition):
            partition.leader.check_follower(self._replica_id, self._broker_epoch)
        if requested.last_fetched_epoch > NO_EPOCH:
            result.data.diverging_epoch = divergence(partition, requested)
            if result.data.diverging_epoch is not None:
                result.is_urgent = True
                return False
        if not log.log_start_offset <= requested.fetch_offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return self._admit(partition, result) if self._is_special else True

    def _admit(self, partition: Replica, result: LogReadResult) -> bool:
        """Update a follower's state, or send a consumer to a nearer replica; returns whether to read on."""
        if not self.is_follower:
            if isinstance(partition, LeaderPartition):
                self._choose_replica(partition, result)
            result.is_urgent = result.data.preferred_read_replica >= 0
            return not result.is_urgent
        assert isinstance(partition, LeaderPartition), "followers read from leaders alone"
        self._hear_follower(partition, result)
        result.is_urgent = self._can_raise_high_watermark(partition, result.requested)
        return not result.is_throttled or not self._is_rate_exceeded()

    def _hear_follower(self, partition: LeaderPartition, result: LogReadResult) -> None:
        """Report the follower's position to the leader's view."""
        requested = result.requested
        if requested.fetch_offset < partition.log.local_log_start_offset:
            # It must not be filled up record by record from the lake, where all replicas read the same.
            raise KafkaError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
        if self._is_first_lookup:
            partition.update_follower_fetch_state(
                self._replica_id,
                fetch_offset=requested.fetch_offset,
                log_start_offset=requested.log_start_offset,
                broker_epoch=self._broker_epoch,
            )
        result.is_throttled = self._is_throttled(partition)

    def _is_throttled(self, partition: LeaderPartition) -> bool:
        """Whether the leader holds this follower back to a rate (KIP-73); in sync it never does."""
        leader = partition.leader
        if self._replica_id in leader.isr:
            return False
        topic = self._node.metadata.topics.get(partition.topic)
        listed = topic.configs.get(LEADER_THROTTLED_REPLICAS) if topic is not None else None
        return is_listed(listed, partition.partition, leader.node_id)

    def _is_rate_exceeded(self) -> bool:
        return self._fetch_manager.throttle.is_exceeded(self._node.clock.monotonic_ms())

    def _can_raise_high_watermark(self, partition: Replica, requested: FetchPartition) -> bool:
        """Whether a follower can move its high watermark now: it reports it (v18, KIP-1166)."""
        return requested.high_watermark < min(partition.high_watermark, requested.fetch_offset)

    def _choose_replica(self, partition: LeaderPartition, result: LogReadResult) -> None:
        """Send a consumer to a nearer replica (KIP-392)."""
        assert self._select_replica is not None
        chosen = self._select_replica(
            partition.leader,
            self._node.metadata.brokers,
            self._request.rack_id,
            result.requested.fetch_offset,
            self._context.listener,
        )
        if chosen is not None:
            result.data.preferred_read_replica = chosen

    def _bound_of(self, partition: Replica) -> int:
        """The first offset that this reader may not have."""
        if self.is_follower:
            return partition.log.log_end_offset
        return partition.fetchable_end(self._request.isolation_level)

    def _look_up(self, partition: Replica, result: LogReadResult, max_bytes: int) -> None:
        log, requested, data = partition.log, result.requested, result.data
        offset = requested.fetch_offset
        reads_on = True
        if self._is_special or requested.last_fetched_epoch > NO_EPOCH:
            reads_on = self._check_reader(partition, result)
        elif not log.log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = partition.last_stable_offset()
        data.log_start_offset = log.log_start_offset
        if not reads_on:
            return
        if self.is_follower:
            bound = log.log_end_offset
        else:
            bound = data.last_stable_offset if self._is_committed else data.high_watermark
        if log.config.compression_type == "zstd" and self._is_before_zstd:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)  # KIP-110
        if self._is_committed:
            data.aborted_transactions = []
        if offset < bound:
            self._look_up_in_log(partition, result, bound, max_bytes)
        elif self._may_be_idle and not result.is_urgent and isinstance(partition, LeaderPartition):
            result.changes = partition.changes

    def _look_up_in_log(
        self, partition: Replica, result: LogReadResult, bound: int, max_bytes: int
    ) -> None:
        log, offset = partition.log, result.requested.fetch_offset
        is_first = not self.size_bytes
        if offset < log.local_log_start_offset:
            remote_log_manager = self._node.remote_log_manager
            if remote_log_manager is not None and remote_log_manager.sheds_reads():
                result.is_remote_throttled = True
                return
            # The lake gives one batch at least, so it is asked only where there is room for one.
            result.delayed_bytes = max_bytes if max_bytes > 0 else int(is_first)
            result.is_urgent = True
            return
        if max_bytes <= 0 and not is_first:
            return
        look = partial(
            log.read,
            offset,
            max_bytes=max_bytes,
            upper_bound_offset=bound,
            min_one_batch=is_first,
        )
        try:
            result.log_read = look(may_wait=False)
        except OSError:
            # It would have to wait, or the disk fails: a thread finds out which.
            result.read_again, result.delayed_bytes, result.is_urgent = look, max_bytes, True
            return
        # A read that ends before the bound has more behind it than fits or than one segment holds.
        if result.log_read.slices and result.log_read.upper_bound_offset < bound:
            result.is_urgent = True

    def partitions(self) -> Iterable[Replica]:
        """The partitions that the request has an interest in, except idle ones."""
        return [result.partition for result in self._results if result.partition is not None]

    def available_bytes(self) -> dict[Replica, int]:
        """What each partition has, of those in which something was found."""
        sizes: dict[Replica, int] = {}
        for result in self._results:
            if result.partition is not None and result.size_bytes:
                sizes[result.partition] = sizes.get(result.partition, 0) + result.size_bytes
        return sizes

    def available_bytes_of(self, partition: Replica) -> int | None:
        """The bytes that a partition has for this request by now; None if the request is to be answered at once."""
        total = 0
        for result in self._results.of(partition):
            bound = self._bound_of(partition)
            offset = result.requested.fetch_offset
            if self.is_follower and self._can_raise_high_watermark(partition, result.requested):
                return None
            if offset >= bound or (result.is_throttled and self._is_rate_exceeded()):
                continue
            if result.is_remote_throttled:
                continue  # Its reader waits for records from the lake, not for what is appended to the log.
            if self.min_bytes <= 1:
                return None
            try:
                log_read = partition.log.read(
                    offset,
                    max_bytes=result.requested.partition_max_bytes,
                    upper_bound_offset=bound,
                    min_one_batch=True,
                    may_wait=False,
                )
            except (OSError, KafkaError):
                return None
            if log_read.upper_bound_offset < bound:
                return None
            total += log_read.size_bytes
        return total

    # -- response -----------------------------------------------------------------------------

    def answer(self) -> FetchResponse | Awaitable[FetchResponse]:
        """The response with what was found; to be awaited if disk or lake must be read."""
        waits: list[Awaitable[None]] = []
        size_bytes = 0
        for result in self._results:
            if result.log_read is not None or result.read_again is not None:
                if result.log_read is None or not self._read_at_once(result):
                    size_bytes += result.size_bytes
                    waits.append(self._read_on_disk(result))
            elif result.delayed_bytes:
                waits.append(self._read_lake(result))
        return self._answer_later(waits, size_bytes) if waits else self._response()

    async def _answer_later(self, waits: list[Awaitable[None]], size_bytes: int) -> FetchResponse:
        with self._fetch_manager.reading(size_bytes):
            await asyncio.gather(*waits)
        return self._response()

    def _read_at_once(self, result: LogReadResult) -> bool:
        """Read what was found, or have it sent from the file, if that needs no waiting."""
        partition, log_read = result.partition, result.log_read
        assert partition is not None
        assert log_read is not None
        buffers: list[Any] = []
        for piece in log_read.slices:
            try:
                is_sent = self._sends_files and piece.size_bytes >= SENT_BYTES_MIN
                buffer = piece.sendable() if is_sent else piece.read_now()
            except OSError:
                return False  # The thread's read finds the same error, and reports it for this partition alone.
            if buffer is None:
                return False
            buffers.append(buffer)
        self._fill(result, log_read, buffers)
        return True

    async def _read_on_disk(self, result: LogReadResult) -> None:
        """Read in a thread; segments deleted meanwhile are in the lake, if the log still holds the offset."""
        partition, offset = result.partition, result.requested.fetch_offset
        assert partition is not None
        log, data = partition.log, result.data
        is_read = await self._read_in_thread(result, partition)
        # With a segment its list of aborted transactions goes: without it read_committed would read them.
        if offset >= log.local_log_start_offset or (is_read and not self._is_committed):
            return
        if offset < log.log_start_offset:
            result.data = no_records(result.requested.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
            return
        result.data = data
        if self._is_committed:
            data.aborted_transactions = []
        result.delayed_bytes = max(result.size_bytes, 1)
        await self._read_lake(result)

    async def _read_in_thread(self, result: LogReadResult, partition: Replica) -> bool:
        """Find and read beside the event loop what is not in memory; returns whether that succeeded."""
        log_read, read_again = result.log_read, result.read_again

        def read() -> tuple[LogRead, list[Any]]:
            where = log_read
            if where is None:
                assert read_again is not None
                where = read_again()
            return where, [piece.read() for piece in where.slices]

        try:
            where, buffers = await asyncio.get_running_loop().run_in_executor(None, read)
        except KafkaError as error:
            result.data = no_records(result.requested.partition, error.code)
        except OSError as error:
            partition.log.failed_to_read(error)
            result.data = no_records(result.requested.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._fill(result, where, buffers)
            return True
        return False

    def _fill(self, result: LogReadResult, log_read: LogRead, buffers: list[Any]) -> None:
        result.data.records = buffers
        if self._is_committed and buffers and result.partition is not None:
            aborted = result.partition.aborted_transactions(
                result.requested.fetch_offset, log_read.upper_bound_offset
            )
            result.data.aborted_transactions = [
                AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                for each in aborted
            ]

    async def _read_lake(self, result: LogReadResult) -> None:
        """Fill one partition from the lake; an error there is this partition's alone."""
        partition, remote_log_manager = result.partition, self._node.remote_log_manager
        try:
            if partition is None or remote_log_manager is None:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            batches = await remote_log_manager.read(
                partition.log.topic_id_partition,
                result.requested.fetch_offset,
                max_bytes=result.delayed_bytes,
                isolation_level=self._request.isolation_level,
            )
        except KafkaError as error:
            result.data = no_records(result.requested.partition, error.code)
        else:
            if batches is not None:
                result.data.records = batches

    def _response(self) -> FetchResponse:
        leaders = []
        responses = []
        for requested, results in self._results.topics():
            for result in results:
                self._count(result)
                if result.data.error_code in LEADERSHIP_ERRORS:
                    self._name_leader(result.data, requested)
                    if result.data.current_leader is not None:
                        leaders.append(result.data.current_leader)
            responses.append(
                FetchableTopicResponse(
                    topic=requested.topic,
                    topic_id=requested.topic_id,
                    partitions=[result.data for result in results],
                )
            )
        response = FetchResponse(responses=responses)
        if leaders:
            image = self._node.metadata
            response.node_endpoints = endpoints_of(image, self._context.listener, leaders)
        fetch_context = self._results.fetch_context
        if fetch_context.is_single:
            return response
        if fetch_context.session is not None:
            fetch_context.session.idle.count()
        return fetch_context.finish(
            response, self._node.clock.monotonic_ms(), self._results.idle(self._broker_epoch)
        )

    def _count(self, result: LogReadResult) -> None:
        if result.partition is None:
            return
        code, records = result.data.error_code, result.data.records
        size_bytes = (
            sum(map(len, records)) if isinstance(records, list | tuple) else len(records or b"")
        )
        is_reassignment = False
        if isinstance(result.partition, LeaderPartition):
            counters = result.partition.counters
            is_reassignment = self.is_follower and result.partition.leader.is_adding(
                self._replica_id
            )
        else:
            replicas: ReplicaManager = self._node.replica_manager
            counters = replicas.topic_metrics.of(result.partition.topic)
        counters.read(
            size_bytes,
            is_failure=code in _OUR_FAULTS,
            is_follower=self.is_follower,
            is_reassignment=is_reassignment,
        )
        if result.is_throttled:
            self._fetch_manager.throttle.record(size_bytes, self._node.clock.monotonic_ms())

    def _name_leader(self, data: FetchPartitionData, topic: FetchTopic) -> None:
        image = self._node.metadata
        name = topic.topic
        if self._by_id:
            known = image.topics_by_id.get(topic.topic_id)
            name = known.name if known is not None else ""
        data.current_leader = leader_of(image, name, data.partition_index)


class LogReadResult:
    """What there is for one partition of the request."""

    __slots__ = (
        "changes",
        "delayed_bytes",
        "data",
        "is_remote_throttled",
        "is_throttled",
        "is_urgent",
        "read_again",
        "log_read",
        "partition",
        "requested",
    )

    def __init__(self, requested: FetchPartition, data: FetchPartitionData) -> None:
        self.requested = requested
        self.data = data
        self.partition: Replica | None = None
        self.log_read: LogRead | None = None
        # How much to read from the lake, or from parts of the disk that must be waited for; 0 if nothing.
        self.delayed_bytes = 0
        # Finds `log_read` in a thread, where the disk is needed even for that.
        self.read_again: Callable[[], LogRead] | None = None
        # Whether waiting for more would be wrong: an error, a divergence, more behind than fits.
        self.is_urgent = False
        # Whether its bytes count for the leader's throttle.
        self.is_throttled = False
        # Whether it lies in the lake, whose fetch quota is used up (KIP-956).
        self.is_remote_throttled = False
        # `LeaderPartition.changes` at the lookup, if a new one would find the same until something happens there.
        self.changes: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing, and will be nothing until the partition advances."""
        return not (
            self.is_urgent
            or self.is_throttled
            or self.is_remote_throttled
            or self.log_read
            or self.delayed_bytes
        )

    @property
    def idle(self) -> LeaderPartition | None:
        """The partition, if there is nothing, and nothing has happened since the lookup."""
        partition = self.partition
        if self.changes is None or not isinstance(partition, LeaderPartition):
            return None
        return partition if partition.changes == self.changes else None

    @property
    def size_bytes(self) -> int:
        """Bytes of records that were found."""
        return self.log_read.size_bytes if self.log_read is not None else self.delayed_bytes


def no_records(partition: int, code: ErrorCode = ErrorCode.NONE) -> FetchPartitionData:
    """An answer without records; the high watermark is not known, as with every error of Kafka's."""
    return FetchPartitionData(
        partition_index=partition, error_code=code, high_watermark=-1, records=NO_RECORDS
    )


def replica_of(request: FetchRequest) -> tuple[int, int]:
    """The fetching replica's id (-1 for a consumer) and its broker epoch (-1 if not given, KIP-903)."""
    state = request.replica_state
    if state is not None:
        return state.replica_id, state.replica_epoch
    return request.replica_id, NO_BROKER_EPOCH


def divergence(partition: Replica, requested: FetchPartition) -> FetchEpochEndOffset | None:
    """Where the reader's log diverges from this one, if it does (KIP-595)."""
    epoch, end_offset = partition.end_of_epoch(requested.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if requested.fetch_offset < partition.log.log_start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < requested.last_fetched_epoch or end_offset < requested.fetch_offset:
        return FetchEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None


class FetchResults:
    """What each partition of one request has, in the order of its session (or, without one, of the request)."""

    __slots__ = ("_by_topic", "_joined", "fetch_context")

    def __init__(self, fetch_context: FetchContext) -> None:
        self.fetch_context = fetch_context
        # By the topics of `fetch_context`.
        self._by_topic: list[list[LogReadResult]] = []
        self._joined: dict[Replica, tuple[CachedPartition, LogReadResult]] = {}

    def find(self, look_up: LogLookup) -> None:
        """Look all of them up."""
        self._place_joined()
        self._by_topic = [
            [look_up(topic, requested) for requested in topic.partitions]
            for topic in self.fetch_context.topics
        ]

    def find_again(self, look_up: LogLookup, advanced: Container[Replica]) -> None:
        """Look these up again, if anything was found at all."""
        self._place_joined()
        for topic, results in self.topics():
            for index, result in enumerate(results):
                if result.partition in advanced or not result.is_empty:
                    results[index] = look_up(topic, result.requested)

    def join(self, cached: CachedPartition, partition: LeaderPartition) -> None:
        """This one was idle until now."""
        data = no_records(cached.requested.partition)
        data.high_watermark = cached.high_watermark
        data.log_start_offset = cached.log_start_offset
        result = LogReadResult(cached.requested, data)
        result.partition = partition
        self._joined.setdefault(partition, (cached, result))

    def _place_joined(self) -> None:
        """Move those that have joined to their places."""
        session, fetch_context = self.fetch_context.session, self.fetch_context
        if not self._joined or session is None:
            return
        looked_at = (
            pair
            for group, results in zip(fetch_context.groups, self._by_topic, strict=True)
            for pair in zip(group.cached, results, strict=True)
        )
        result = dict(chain(looked_at, self._joined.values()))
        groups = session.in_line(result)
        self.fetch_context = fetch_context._replace(
            topics=[group.topic for group in groups], groups=groups
        )
        self._by_topic = [[result[cached] for cached in group.cached] for group in groups]
        self._joined.clear()

    def topics(self) -> Iterator[tuple[FetchTopic, list[LogReadResult]]]:
        """All that is to be answered, by topic."""
        return zip(self.fetch_context.topics, self._by_topic, strict=True)

    def __iter__(self) -> Iterator[LogReadResult]:
        return chain.from_iterable(self._by_topic)

    def of(self, partition: Replica) -> Sequence[LogReadResult]:
        """What was found in one partition, which a request may name twice."""
        joined = self._joined.get(partition)
        if joined is not None:
            return (joined[1],)
        return [result for result in self if result.partition is partition]

    def idle(self, broker_epoch: int) -> list[tuple[CachedPartition, LeaderPartition]]:
        """Those of a session that have no news until something happens to them.

        `broker_epoch` is the asking follower's.
        """
        session = self.fetch_context.session
        if session is None:
            return []
        reader = session.idle.reader
        return [
            (cached, partition)
            for group, results in zip(self.fetch_context.groups, self._by_topic, strict=True)
            for cached, result in zip(group.cached, results, strict=True)
            if (partition := result.idle) is not None
            and (
                reader.replica_id <= CONSUMER
                or partition.leader.may_be_idle(
                    reader.replica_id,
                    fetch_offset=cached.requested.fetch_offset,
                    log_start_offset=cached.requested.log_start_offset,
                    broker_epoch=broker_epoch,
                    heard_ms=reader.last_fetch_ms,
                )
            )
        ]


class DelayedResponse(asyncio.Future[FetchResponse]):
    """A response that may be had sooner than it would come."""

    def __init__(self, force_complete: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.force_complete = force_complete


class DelayedFetch:
    """One request that waits; a watcher of all its partitions, woken by events and never by polling.

    It is answered when its time is over, or earlier when one of these is true (Kafka's cases by their letters):
    - A, B, C: the partition is no longer led here (for consumers: nor followed), or is gone with its topic (`lost`);
    - D: its log directory has failed, or the broker stops (`lost`);
    - E: the leader epoch is newer than the request's: such a change ends this broker's lead, or is noticed with
      the next advance;
    - F: there is more after the reader's offset than the rest of its segment, so there is nothing to wait for;
    - G: the bytes of all its partitions reach min_bytes;
    - H: the reader's log diverges: found before waiting, because a leader's log is never truncated;
    - for a follower also: it can move its high watermark, anything was appended, or it has sent another request
      (`force_complete`), since it wants to ask for more partitions.
    The answer is made in the loop's next turn: the producer whose append woke the reader gets its answer first,
    and appends of one turn become one answer. Only partitions that have advanced are looked up again, or all of
    them if one was lost.
    """

    __slots__ = (
        "_advanced",
        "_available",
        "_lost_partition",
        "_is_waking",
        "_loop",
        "_processor",
        "_idle",
        "_timer",
        "_watched",
        "future",
    )

    def __init__(self, processor: FetchProcessor, max_wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._processor = processor
        self._is_waking = False
        self._lost_partition = False
        self._advanced: set[Replica] = set()
        self._watched: dict[Replica, None] = {}
        self._available = processor.available_bytes()
        self.future: asyncio.Future[FetchResponse] = (
            DelayedResponse(self.force_complete, loop)
            if processor.is_follower
            else loop.create_future()
        )
        # Also when the connection is lost: whoever awaits the future cancels it.
        self.future.add_done_callback(self._forget)
        for partition in dict.fromkeys(processor.partitions()):
            self._watch(partition)
        self._idle = processor.idle
        if self._idle is not None:
            self._idle.park(self, self._joined)
        self._timer = loop.call_later(max_wait_ms / 1000, self._complete)

    def _watch(self, partition: Replica) -> None:
        self._watched[partition] = None
        if self._processor.is_follower and isinstance(partition, LeaderPartition):
            partition.watch(self, to_log_end=True)
        else:
            partition.watch(self)

    def _joined(self, cached: CachedPartition, partition: LeaderPartition) -> None:
        """Something is about to happen to a partition that was idle until now."""
        if partition not in self._watched:
            self._processor.join(cached, partition)
            self._watch(partition)

    def advanced(self, partition: Replica) -> None:
        """More may be read of this partition (cases E to G)."""
        self._advanced.add(partition)
        if self._is_waking:
            return
        beyond = self._processor.available_bytes_of(partition)
        if beyond is not None:
            self._available[partition] = beyond
            if sum(self._available.values()) < self._processor.min_bytes:
                return
        self._wake()

    def lost(self, partition: Replica) -> None:
        """The partition is no longer served (cases A to D)."""
        self._lost_partition = True
        if not self._is_waking:
            self._wake()

    def force_complete(self) -> None:
        """Answer with what there is."""
        if not self._is_waking and not self.future.done():
            self._wake()

    def _wake(self) -> None:
        self._is_waking = True
        self._loop.call_soon(self._complete)

    def _complete(self) -> None:
        if self.future.done():
            return
        if self._lost_partition and self._idle is not None:
            self._idle.clear()
        self._unpark()
        try:
            if self._lost_partition:
                self._processor.find()
            else:
                self._processor.find_again(self._advanced)
            answer = self._processor.answer()
        except Exception as error:  # noqa: BLE001 - it is the request's, and answered as such
            self.future.set_exception(error)
            return
        if isinstance(answer, FetchResponse):
            self.future.set_result(answer)
        else:
            self._wait_for(answer)

    def _wait_for(self, answer: Awaitable[FetchResponse]) -> None:
        task = asyncio.ensure_future(answer)
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Future[FetchResponse]) -> None:
        if self.future.done() or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())

    def _forget(self, future: asyncio.Future[FetchResponse]) -> None:
        self._unpark()

    def _unpark(self) -> None:
        self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self)
        self._watched.clear()
        if self._idle is not None:
            self._idle.unpark(self)
