"""Shell: what a Fetch request gets now: found in the logs, read, and put into a response.

Rules of this file:
- Finding (`find`) is cheap and touches no data. When a parked request is completed it is done again from the beginning,
  because topics and leaders may have changed meanwhile.
- Budgets as in Kafka (KIP-74): at most `max_bytes` in all and `partition_max_bytes` of each partition, but the first
  partition with data gives at least one whole batch, so that a large batch cannot stop its reader.
- Records are sent from the buffers that they were read into. A read that may wait for the disk is done in a thread, a
  read of offsets that are only in the lake by the tier; all reads of a response run at the same time.
- An error concerns one partition, and not the others of the request.
- A follower's fetch updates the leader's view of the follower when it arrives, and not again after it was parked,
  because its offset was true on arrival. This happens first, so that the answer has the resulting high watermark.
- A throttled follower gets nothing of the partition, and no error, while the rate is exceeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container, Iterable
from functools import partial
from typing import Any

from broker.cluster.acls import Operation, ResourceType
from broker.handlers.common import LEADERSHIP_ERRORS, endpoints_of, leader_of
from broker.handlers.records.found import Found, Replica, divergence, nothing, replica_of
from broker.handlers.records.line import Line
from broker.log.values import READ_COMMITTED, LogRead
from broker.registry import RequestContext
from broker.replica.leader.hosted import HostedPartition
from broker.replica.manager import ReplicaManager
from broker.replica.serving.fetch_sessions import FetchContext
from broker.replica.serving.fetching import LEADER_THROTTLED_REPLICAS, Fetching
from broker.replica.serving.resting import CachedPartition, Resting
from broker.replica.throttle import is_listed
from broker.security.authorization.asking import authorizer_of, may
from broker.security.quotas.throttling import fetch_bytes_max
from kafka_ds.wire.errors import ErrorCode, KafkaError
from kafka_ds.wire.messages import FetchRequest, FetchResponse
from kafka_ds.wire.messages.data import (
    CONSUMER,
    FIRST_VERSION_WITH_TOPIC_IDS,
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
    FetchTopic,
)

FIRST_VERSION_WITH_ZSTD = 10
FIRST_VERSION_WITH_RACK = 11
NO_EPOCH = -1

# What Kafka counts as a failure of a fetch: no client could have asked better.
_OUR_FAULTS = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR})


class Reading:
    """One Fetch request being answered."""

    def __init__(self, request: FetchRequest, context: RequestContext, wants: FetchContext) -> None:
        """`wants` is what the request stands for within its session."""
        self._request = request
        self._line = Line(wants)
        self._context = context
        self._node = context.node
        version = context.header.api_version
        self._by_id = version >= FIRST_VERSION_WITH_TOPIC_IDS
        self._is_before_zstd = version < FIRST_VERSION_WITH_ZSTD
        # Older consumers would not know what to make of another replica (KIP-392).
        self._may_follow = version >= FIRST_VERSION_WITH_RACK
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._replica_id, self._broker_epoch = replica_of(request)
        self.is_follower = self._replica_id > CONSUMER
        self._is_first_look = True
        fetching: Fetching = self._node.fetching
        self._fetching = fetching
        self._select_replica = fetching.select_replica if self._may_follow else None
        # Followers were asked for CLUSTER_ACTION, consumers are asked for each topic: a session may be older than ACLs.
        self._asks = not self.is_follower and authorizer_of(context) is not None
        # Whether there is more to do than to read what a consumer asks for.
        self._is_special = self.is_follower or self._select_replica is not None
        # What a consumer finds depends on followers where it may be sent to one, and on ACLs where there are any.
        self._may_rest = not self._is_before_zstd and (
            self.is_follower or not (self._is_special or self._asks)
        )
        max_bytes = min(request.max_bytes, self._node.config.fetch_max_bytes)
        if not self.is_follower:
            max_bytes = min(max_bytes, fetch_bytes_max(context), fetching.answer_bytes_max())
        self._max_bytes = max(max_bytes, 0)
        self.min_bytes = min(request.min_bytes, self._max_bytes)
        self.size_bytes = 0
        self.is_urgent = False

    # -- finding ------------------------------------------------------------------------------

    def find(self) -> None:
        """Look for what there is now."""
        self.size_bytes = 0
        self.is_urgent = False
        self._line.find(self._find)
        if self._is_first_look and self.resting is not None:
            self.resting.heard(self._node.clock.monotonic_ms())
        self._is_first_look = False

    def find_again(self, advanced: Container[Replica]) -> None:
        """The same, where nothing has happened but that these have advanced.

        Where there was nothing, and nothing came, is not looked at again.
        """
        self.size_bytes = 0
        self.is_urgent = False
        self._line.find_again(self._find, advanced)

    @property
    def resting(self) -> Resting | None:
        """What its session does not look at; None without a session."""
        session = self._line.wants.session
        return session.resting if session is not None else None

    def join(self, cached: CachedPartition, partition: HostedPartition) -> None:
        """This one has rested until now."""
        self._line.join(cached, partition)

    def _find(self, topic: FetchTopic, wanted: FetchPartition) -> Found:
        found = Found(wanted, nothing(wanted.partition))
        left = self._max_bytes - self.size_bytes
        try:
            partition = self._locate(topic, wanted)
            partition.check_epoch(wanted.current_leader_epoch)
            found.partition = partition
            self._look(partition, found, min(wanted.partition_max_bytes, left))
        except KafkaError as error:
            found.data = nothing(wanted.partition, error.code)
            found.is_urgent = True
        self.size_bytes += found.size_bytes
        self.is_urgent = self.is_urgent or found.is_urgent
        return found

    def _locate(self, topic: FetchTopic, wanted: FetchPartition) -> Replica:
        name = topic.topic
        if self._by_id:
            known = self._node.metadata.topics_by_id.get(topic.topic_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = known.name
        if self._asks and not may(self._context, Operation.READ, ResourceType.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        replicas: ReplicaManager = self._node.replica_manager
        led = replicas.find(name, wanted.partition)
        if led is not None:
            return led
        if self._may_follow and not self.is_follower:
            replica = replicas.replica(name, wanted.partition)
            if replica is not None:
                return replica
        raise KafkaError(replicas.why_absent(name, wanted.partition))

    def _check_reader(self, partition: Replica, found: Found) -> bool:
        """Whether to read on: the reader's log has not parted from this one, and it should not read elsewhere."""
        wanted, log = found.wanted, partition.log
        if self.is_follower and isinstance(partition, HostedPartition):
            partition.leader.check_follower(self._replica_id, self._broker_epoch)
        if wanted.last_fetched_epoch > NO_EPOCH:
            found.data.diverging_epoch = divergence(partition, wanted)
            if found.data.diverging_epoch is not None:
                found.is_urgent = True
                return False
        if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return self._admit(partition, found) if self._is_special else True

    def _admit(self, partition: Replica, found: Found) -> bool:
        """Hear a follower, or send a consumer to a replica that is nearer; whether to read on."""
        if not self.is_follower:
            if isinstance(partition, HostedPartition):
                self._choose_replica(partition, found)
            found.is_urgent = found.data.preferred_read_replica >= 0
            return not found.is_urgent
        assert isinstance(partition, HostedPartition), "followers read from leaders alone"
        self._hear_follower(partition, found)
        found.is_urgent = self._owes_high_watermark(partition, found.wanted)
        return not found.is_throttled or not self._is_rate_exceeded()

    def _hear_follower(self, partition: HostedPartition, found: Found) -> None:
        """Tell the leader's view where the follower is."""
        wanted = found.wanted
        if wanted.fetch_offset < partition.log.local_log_start_offset:
            # It must not be filled up record by record out of the lake, where all replicas read the same.
            raise KafkaError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
        if self._is_first_look:
            partition.followed(
                self._replica_id,
                fetch_offset=wanted.fetch_offset,
                log_start_offset=wanted.log_start_offset,
                broker_epoch=self._broker_epoch,
            )
        found.is_throttled = self._is_throttled(partition)

    def _is_throttled(self, partition: HostedPartition) -> bool:
        """Whether the leader holds this follower back to a rate (KIP-73); in sync it never does."""
        leader = partition.leader
        if self._replica_id in leader.isr:
            return False
        topic = self._node.metadata.topics.get(partition.topic)
        listed = topic.configs.get(LEADER_THROTTLED_REPLICAS) if topic is not None else None
        return is_listed(listed, partition.index, leader.node_id)

    def _is_rate_exceeded(self) -> bool:
        return self._fetching.throttle.is_exceeded(self._node.clock.monotonic_ms())

    def _owes_high_watermark(self, partition: Replica, wanted: FetchPartition) -> bool:
        """Whether a follower can move its high watermark now: it says where it is (v18, KIP-1166)."""
        return wanted.high_watermark < min(partition.high_watermark, wanted.fetch_offset)

    def _choose_replica(self, partition: HostedPartition, found: Found) -> None:
        """Send a consumer to a replica that is nearer (KIP-392)."""
        assert self._select_replica is not None
        chosen = self._select_replica(
            partition.leader,
            self._node.metadata.brokers,
            self._request.rack_id,
            found.wanted.fetch_offset,
            self._context.listener,
        )
        if chosen is not None:
            found.data.preferred_read_replica = chosen

    def _bound_of(self, partition: Replica) -> int:
        """The first offset that this reader may not have."""
        if self.is_follower:
            return partition.log.log_end_offset
        return partition.fetchable_end(self._request.isolation_level)

    def _look(self, partition: Replica, found: Found, max_bytes: int) -> None:
        log, wanted, data = partition.log, found.wanted, found.data
        offset = wanted.fetch_offset
        reads_on = True
        if self._is_special or wanted.last_fetched_epoch > NO_EPOCH:
            reads_on = self._check_reader(partition, found)
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
            self._look_in_log(partition, found, bound, max_bytes)
        elif self._may_rest and not found.is_urgent and isinstance(partition, HostedPartition):
            found.changes = partition.changes

    def _look_in_log(self, partition: Replica, found: Found, bound: int, max_bytes: int) -> None:
        log, offset = partition.log, found.wanted.fetch_offset
        is_first = not self.size_bytes
        if offset < log.local_log_start_offset:
            if self._node.tier is not None and self._node.tier.sheds_reads():
                found.is_shed = True
                return
            # The lake gives one batch at least, so it is asked only where there is room for one.
            found.cold_bytes = max_bytes if max_bytes > 0 else int(is_first)
            found.is_urgent = True
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
            found.part = look(may_wait=False)
        except OSError:
            # It would have to wait, or the disk does not do its part: either is seen in a thread.
            found.look_again, found.cold_bytes, found.is_urgent = look, max_bytes, True
            return
        # A part that ends before the bound has more behind it than fits or than one segment holds.
        if found.part.slices and found.part.upper_bound_offset < bound:
            found.is_urgent = True

    def partitions(self) -> Iterable[Replica]:
        """The partitions that the request has an interest in, except those that rest."""
        return [found.partition for found in self._line if found.partition is not None]

    def bytes_found(self) -> dict[Replica, int]:
        """What each partition has that was found to have anything."""
        sizes: dict[Replica, int] = {}
        for found in self._line:
            if found.partition is not None and found.size_bytes:
                sizes[found.partition] = sizes.get(found.partition, 0) + found.size_bytes
        return sizes

    def bytes_beyond(self, partition: Replica) -> int | None:
        """What a partition of this request has by now; None where that is reason enough to answer."""
        total = 0
        for found in self._line.of(partition):
            bound = self._bound_of(partition)
            offset = found.wanted.fetch_offset
            if self.is_follower and self._owes_high_watermark(partition, found.wanted):
                return None
            if offset >= bound or (found.is_throttled and self._is_rate_exceeded()):
                continue
            if found.is_shed:
                continue  # What is appended is not what its reader wants first.
            if self.min_bytes <= 1:
                return None
            try:
                part = partition.log.read(
                    offset,
                    max_bytes=found.wanted.partition_max_bytes,
                    upper_bound_offset=bound,
                    min_one_batch=True,
                    may_wait=False,
                )
            except (OSError, KafkaError):
                return None
            if part.upper_bound_offset < bound:
                return None
            total += part.size_bytes
        return total

    # -- answering ----------------------------------------------------------------------------

    def answer(self) -> FetchResponse | Awaitable[FetchResponse]:
        """The response with what was found; to be waited for where disk or lake must be."""
        waits: list[Awaitable[None]] = []
        size_bytes = 0
        for found in self._line:
            if found.part is not None or found.look_again is not None:
                if found.part is None or not self._read_at_once(found):
                    size_bytes += found.size_bytes
                    waits.append(self._read_on_disk(found))
            elif found.cold_bytes:
                waits.append(self._read_lake(found))
        return self._answer_later(waits, size_bytes) if waits else self._response()

    async def _answer_later(self, waits: list[Awaitable[None]], size_bytes: int) -> FetchResponse:
        fetching = self._fetching
        fetching.being_read_bytes += size_bytes
        try:
            await asyncio.gather(*waits)
        finally:
            fetching.being_read_bytes -= size_bytes
        return self._response()

    def _read_at_once(self, found: Found) -> bool:
        """Read what was found, if that needs no waiting."""
        partition, part = found.partition, found.part
        assert partition is not None
        assert part is not None
        buffers: list[Any] = []
        for piece in part.slices:
            try:
                buffer = piece.read_now()
            except OSError:
                return False  # The read in a thread finds this, too, and reports it for this partition alone.
            if buffer is None:
                return False
            buffers.append(buffer)
        self._fill(found, part, buffers)
        return True

    async def _read_on_disk(self, found: Found) -> None:
        """Read in a thread; what left the disk meanwhile is in the lake, if the log still holds it."""
        partition, offset = found.partition, found.wanted.fetch_offset
        assert partition is not None
        log, data = partition.log, found.data
        is_read = await self._read_in_thread(found, partition)
        # With a segment its list of aborted transactions goes: without it read_committed would read them.
        if offset >= log.local_log_start_offset or (is_read and not self._is_committed):
            return
        if offset < log.log_start_offset:
            found.data = nothing(found.wanted.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
            return
        found.data = data
        if self._is_committed:
            data.aborted_transactions = []
        found.cold_bytes = max(found.size_bytes, 1)
        await self._read_lake(found)

    async def _read_in_thread(self, found: Found, partition: Replica) -> bool:
        """Find and read beside the event loop what is not in memory; whether that went well."""
        part, look_again = found.part, found.look_again

        def read() -> tuple[LogRead, list[Any]]:
            where = part
            if where is None:
                assert look_again is not None
                where = look_again()
            return where, [piece.read() for piece in where.slices]

        try:
            where, buffers = await asyncio.get_running_loop().run_in_executor(None, read)
        except KafkaError as error:
            found.data = nothing(found.wanted.partition, error.code)
        except OSError as error:
            partition.log.failed_to_read(error)
            found.data = nothing(found.wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._fill(found, where, buffers)
            return True
        return False

    def _fill(self, found: Found, part: LogRead, buffers: list[Any]) -> None:
        found.data.records = buffers
        if self._is_committed and buffers and found.partition is not None:
            aborted = found.partition.aborted_transactions(
                found.wanted.fetch_offset, part.upper_bound_offset
            )
            found.data.aborted_transactions = [
                AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                for each in aborted
            ]

    async def _read_lake(self, found: Found) -> None:
        """Fill one partition from the tier; what goes wrong there is this partition's error alone."""
        partition, tier = found.partition, self._node.tier
        try:
            if partition is None or tier is None:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            read = await tier.read(
                partition.topic,
                partition.topic_id,
                partition.index,
                found.wanted.fetch_offset,
                max_bytes=found.cold_bytes,
                isolation_level=self._request.isolation_level,
            )
        except KafkaError as error:
            found.data = nothing(found.wanted.partition, error.code)
        else:
            if read is not None:
                found.data.records = read.chunks

    def _response(self) -> FetchResponse:
        leaders = []
        responses = []
        for wanted, founds in self._line.topics():
            for found in founds:
                self._count(found)
                if found.data.error_code in LEADERSHIP_ERRORS:
                    self._name_leader(found.data, wanted)
                    if found.data.current_leader is not None:
                        leaders.append(found.data.current_leader)
            responses.append(
                FetchableTopicResponse(
                    topic=wanted.topic,
                    topic_id=wanted.topic_id,
                    partitions=[found.data for found in founds],
                )
            )
        response = FetchResponse(responses=responses)
        if leaders:
            image = self._node.metadata
            response.node_endpoints = endpoints_of(image, self._context.listener, leaders)
        wants = self._line.wants
        if wants.is_single:
            return response
        if wants.session is not None:
            wants.session.resting.count()
        return wants.finish(
            response, self._node.clock.monotonic_ms(), self._line.at_rest(self._broker_epoch)
        )

    def _count(self, found: Found) -> None:
        if found.partition is None:
            return
        code, records = found.data.error_code, found.data.records
        size_bytes = (
            sum(map(len, records)) if isinstance(records, list | tuple) else len(records or b"")
        )
        if isinstance(found.partition, HostedPartition):
            counters = found.partition.counters
        else:
            replicas: ReplicaManager = self._node.replica_manager
            counters = replicas.topic_metrics.of(found.partition.topic)
        counters.read(size_bytes, is_failure=code in _OUR_FAULTS, is_follower=self.is_follower)
        if found.is_throttled:
            self._fetching.throttle.record(size_bytes, self._node.clock.monotonic_ms())

    def _name_leader(self, data: FetchPartitionData, topic: FetchTopic) -> None:
        image = self._node.metadata
        name = topic.topic
        if self._by_id:
            known = image.topics_by_id.get(topic.topic_id)
            name = known.name if known is not None else ""
        data.current_leader = leader_of(image, name, data.partition_index)
