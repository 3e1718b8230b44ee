"""Shell: ShareFetch 1-2: acknowledges records of a share group, and acquires others for a member.

- Acknowledgements come first, as in ShareAcknowledge. Then the partitions of the session are read, each from the first
  offset that is available to the group; the member acquires what it gets for share.record.lock.duration.ms. With less
  than min_bytes between these offsets and the ends it waits, for max_wait_ms at most, for records, released ones and
  expired locks. Only one fetch reads a share partition at a time.
- A response has whole batches, which may hold records that are not acquired; `acquired_records` say which are. With
  share.isolation.level=read_committed those of aborted transactions are not.
- A share partition that cannot be loaded has its own error, and so has one that is not led here. Those of sessions
  concern the request: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED, and
  INVALID_REQUEST for acknowledgements in the first request. Epoch -1 ends the session, and fetches nothing.
- While share.version is 0: UNSUPPORTED_VERSION.

Versions: 2 strict limits of records (KIP-1206), renewals of locks (KIP-1222), which fetch nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from broker.config.group import reset_duration_ms
from broker.handlers.common import (
    LEADERSHIP_ERRORS,
    check_share_groups,
    check_share_member,
    endpoints_of,
    leader_of,
)
from broker.handlers.records.fetch import FetchProcessor
from broker.handlers.records.list_offsets import list_offsets
from broker.handlers.records.share_acknowledgements import (
    acknowledge_all,
    acknowledgements_of,
    check_topic,
    counters_of,
)
from broker.log.values import READ_COMMITTED, READ_UNCOMMITTED
from broker.registry import RequestContext, serves
from broker.replica.leader.partition import LeaderPartition
from broker.replica.serving.fetch_sessions import FetchContext
from broker.share.share_partition import AcquireLimits, FetchedBatch
from broker.share.share_partition_manager import LedSharePartition
from broker.share.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareSession,
    ShareSessionKey,
    update,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    FetchRequest,
    ListOffsetsRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kafka_ds.protocol.messages.data import (
    CONSUMER,
    AbortedTransaction,
    FetchPartition,
    FetchPartitionData,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
)
from kafka_ds.protocol.messages.offsets import (
    EARLIEST,
    LATEST,
    ListOffsetsPartition,
    ListOffsetsTopic,
)
from kafka_ds.protocol.messages.share_fetch import (
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareLeaderIdAndEpoch,
)
from kafka_ds.protocol.topic_partition import PartitionId
from kafka_ds.records.batch import BatchHeader, iterate_headers

STRICT = 1
# What is read of a share partition at once: records beyond the limit of a request would be read in vain.
READ_BYTES_MAX = 1 << 20
FETCH_VERSION, LIST_OFFSETS_VERSION = 18, 10
END_RETRY_S = 0.05


class _Batch(NamedTuple):
    """A batch that was read: its header and its bytes."""

    header: BatchHeader
    data: memoryview


@serves(ShareFetchRequest, versions="1-2")
async def share_fetch(request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
    """Take acknowledgements, and acquire records."""
    check_share_groups(context.broker.metadata)
    shares = context.broker.share_partitions
    key = session_key(request)
    acknowledgements = acknowledgements_of(request.topics)
    if request.is_renew_ack and any((request.max_bytes, request.max_records, request.max_wait_ms)):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    session = _session(key, request, bool(acknowledgements), context)
    fetch = _ShareFetch(request, key, context)
    for partition_id, error in (
        await acknowledge_all(key, acknowledgements, context, may_renew=request.is_renew_ack)
    ).items():
        fetch.acknowledged(partition_id, error)
    if request.share_session_epoch == FINAL_EPOCH:
        released = [task for _, task in shares.leave(key)]
        await asyncio.gather(*released, return_exceptions=True)
    elif request.max_records > 0 and request.max_bytes > 0:
        await fetch.run(session.rotated())
    return fetch.response()


def session_key(request: Any) -> ShareSessionKey:
    """Whose session it is; raises INVALID_REQUEST without a group or a member."""
    if request.group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    check_share_member(request.member_id)
    return ShareSessionKey(request.group_id, request.member_id)


def _session(
    key: ShareSessionKey, request: ShareFetchRequest, acknowledges: bool, context: RequestContext
) -> ShareSession:
    """The request's session, with the partitions that it adds and forgets."""
    shares, now_ms = context.broker.share_partitions, context.broker.clock.monotonic_ms()
    if request.share_session_epoch != INITIAL_EPOCH:
        session = shares.sessions.use(key, request.share_session_epoch, now_ms=now_ms)
    elif acknowledges:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    else:
        limit = context.broker.config.group_share_max_share_sessions
        session, evicted = shares.sessions.open(
            key, connection=context.client, now_ms=now_ms, limit=limit
        )
        if evicted is not None:
            shares.release(evicted)
    if request.share_session_epoch != FINAL_EPOCH:
        update(
            session,
            (
                (topic.topic_id, p.partition_index)
                for topic in request.topics
                for p in topic.partitions
            ),
            (
                (topic.topic_id, p)
                for topic in request.forgotten_topics_data
                for p in topic.partitions
            ),
        )
    return session


class _ShareFetch:
    """One ShareFetch being answered."""

    def __init__(
        self, request: ShareFetchRequest, key: ShareSessionKey, context: RequestContext
    ) -> None:
        self._request = request
        self._key = key
        self._context = context
        self._shares = context.broker.share_partitions
        self._data: dict[PartitionId, ShareFetchPartitionData] = {}
        self._leaders: list[ShareLeaderIdAndEpoch] = []
        level = self._shares.value_of(key.group_id, "share.isolation.level")
        self._isolation = READ_COMMITTED if level == "read_committed" else READ_UNCOMMITTED

    def acknowledged(self, partition_id: PartitionId, error: KafkaError | None) -> None:
        """The outcome of a partition's acknowledgements."""
        data = self._of(partition_id)
        if error is not None:
            data.acknowledge_error_code = error.code
            data.acknowledge_error_message = error.message or None
            self._name_leader(partition_id, error.code)

    # -- reading ------------------------------------------------------------------------------------

    async def run(self, partitions: Sequence[PartitionId]) -> None:
        """Acquire what there is, or wait for it. Share partitions that are being loaded hold up no others."""
        loop = asyncio.get_running_loop()
        began_ms = self._shares.now_ms()
        deadline = loop.time() + max(self._request.max_wait_ms, 0) / 1_000
        event = asyncio.Event()
        led: list[LedSharePartition] = []
        loads = self._begin(partitions, led, event, deadline)
        try:
            while True:
                event.clear()
                self._take_loaded(loads, led, event)
                free = [each for each in led if self._is_free(each)]
                waited_ms = self._shares.now_ms() - began_ms
                wants_none = bool(free) and self._request.min_bytes <= 0
                takes_all = loop.time() >= deadline or wants_none
                await self._read(free, event, takes_all=takes_all)
                if takes_all or self._has_something():
                    break
                # Not wait_for, which may go on after a cancellation and acquire records for a lost connection.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await event.wait()
            if self._request.share_session_epoch == INITIAL_EPOCH:
                for each in free:  # As in Kafka; later answers leave out what has nothing new.
                    self._of(each.key[1])
            percent = 100 * len(free) / max(len(partitions), 1)
            self._shares.count_fetch(self._key.group_id, waited_ms=waited_ms, percent=percent)
        finally:
            for task in loads:
                task.cancel()  # The load itself goes on.
            for each in led:
                each.waiting.discard(event)

    def _has_something(self) -> bool:
        return any(data.acquired_records or data.error_code for data in self._data.values())

    def _begin(
        self,
        partitions: Sequence[PartitionId],
        led: list[LedSharePartition],
        event: asyncio.Event,
        deadline: float,
    ) -> dict[asyncio.Task[LedSharePartition], PartitionId]:
        """Sort out those that are loaded and those that cannot be; returns the loads that were begun."""
        loads: dict[asyncio.Task[LedSharePartition], PartitionId] = {}
        for partition_id in partitions:
            counters_of(partition_id, self._context).share_fetch_requests += 1
            try:
                check_topic(partition_id, self._context)
                known = self._shares.get(self._key.group_id, partition_id)
            except KafkaError as error:
                self._fail(partition_id, error)
                continue
            if known is not None:
                led.append(known)
                known.waiting.add(event)
                continue
            task = asyncio.ensure_future(self._load(partition_id, deadline))
            task.add_done_callback(lambda _: event.set())
            loads[task] = partition_id
        return loads

    async def _load(self, partition_id: PartitionId, deadline: float) -> LedSharePartition:
        """Load it, again while its leader does not know its end: else members would ask without a pause (KIP-207)."""
        while True:
            try:
                return await self._shares.loaded(self._key.group_id, partition_id, self._find_start)
            except KafkaError as error:
                left_s = deadline - asyncio.get_running_loop().time()
                if error.code != ErrorCode.OFFSET_NOT_AVAILABLE or left_s <= END_RETRY_S:
                    raise
            await asyncio.sleep(END_RETRY_S)

    def _take_loaded(
        self,
        loads: dict[asyncio.Task[LedSharePartition], PartitionId],
        led: list[LedSharePartition],
        event: asyncio.Event,
    ) -> None:
        for task in [task for task in loads if task.done()]:
            partition_id = loads.pop(task)
            error = task.exception()
            if isinstance(error, KafkaError):
                self._fail(partition_id, error)
            else:
                led.append(task.result())
                led[-1].waiting.add(event)

    async def _find_start(self, leader: LeaderPartition, strategy: str) -> int:
        """Where the group begins in a partition (share.auto.offset.reset); raises KafkaError while nobody knows."""
        begins = await self._list_offset(leader, EARLIEST if strategy == "earliest" else LATEST)
        duration_ms = reset_duration_ms(strategy)
        if duration_ms is None:
            return begins
        since_ms = self._context.broker.clock.now_ms() - duration_ms
        found = await self._list_offset(leader, since_ms)
        return begins if found < 0 else found

    async def _list_offset(self, leader: LeaderPartition, timestamp: int) -> int:
        wanted = ListOffsetsPartition(partition_index=leader.partition, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=CONSUMER, topics=[ListOffsetsTopic(name=leader.topic, partitions=[wanted])]
        )
        response = list_offsets(request, self._as_version(LIST_OFFSETS_VERSION))
        if inspect.isawaitable(response):
            response = await response
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code))
        return found.offset

    async def _read(
        self, free: Sequence[LedSharePartition], event: asyncio.Event, *, takes_all: bool
    ) -> None:
        """Read those that have something, and acquire it; others look again if something may be left.

        `takes_all`: also if there is less than min_bytes. All of it counts, as in Kafka, also what is not available.
        """
        starts = {each: each.machine.next_fetch_offset() for each in free}
        ready = [each for each in free if starts[each] < each.leader.fetchable_end(self._isolation)]
        if not ready:
            return
        offsets = {each.key[1]: starts[each] for each in ready}
        fetch = self._look_up(offsets)
        if not (takes_all or fetch.is_urgent or fetch.size_bytes >= fetch.min_bytes):
            return
        for each in ready:
            each.begin_fetch()
        try:
            found = await _answer(fetch)
            left = self._request.max_records
            for each in ready:
                partition_id = each.key[1]
                if left > 0 and not each.is_closed:
                    left -= self._acquire(each, found[partition_id], offsets[partition_id], left)
        finally:
            for each in ready:
                each.end_fetch()
            if self._has_something():
                for each in ready:
                    each.wake(but=event)

    def _is_free(self, led: LedSharePartition) -> bool:
        """Whether a fetch may read for this share partition."""
        if led.is_closed or led.is_fetching:
            return False
        led.machine.log_start_incremented(led.leader.log.log_start_offset)
        return led.machine.can_acquire(led.config)

    def _look_up(self, offsets: dict[PartitionId, int]) -> FetchProcessor:
        """What Fetch would find from these offsets on."""
        share = min(max(self._request.max_bytes // len(offsets), 1), READ_BYTES_MAX)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=self._request.min_bytes,
            max_bytes=self._request.max_bytes,
            isolation_level=self._isolation,
            topics=[
                FetchTopic(
                    topic_id=topic_id,
                    partitions=[
                        FetchPartition(
                            partition=partition, fetch_offset=offset, partition_max_bytes=share
                        )
                    ],
                )
                for (topic_id, partition), offset in offsets.items()
            ],
        )
        processor = FetchProcessor(
            request, self._as_version(FETCH_VERSION), FetchContext(topics=request.topics)
        )
        processor.find()
        return processor

    def _as_version(self, version: int) -> RequestContext:
        header = self._context.header._replace(api_version=version)
        return self._context._replace(header=header)

    def _acquire(
        self, led: LedSharePartition, found: FetchPartitionData, offset: int, left: int
    ) -> int:
        """Have the member acquire records that were read; returns how many."""
        partition_id, machine = led.key[1], led.machine
        if found.error_code:
            if found.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                self._fail(partition_id, KafkaError(ErrorCode(found.error_code)))
            return 0
        batches = list(_batches(found.records))
        acquired = machine.acquire(
            self._key.member_id,
            [FetchedBatch(each.header.base_offset, each.header.last_offset) for each in batches],
            fetch_offset=offset,
            limits=AcquireLimits(
                records_max=left,
                batch_size=max(self._request.batch_size, 1),
                is_strict=self._request.share_acquire_mode == STRICT,
            ),
            config=led.config,
            now_ms=self._shares.now_ms(),
        )
        aborted = list(_aborted(batches, found.aborted_transactions or ()))
        if aborted:
            machine.archive(aborted, self._key.member_id)
            acquired = list(_without(acquired, aborted))
        led.arm()
        if not acquired:
            return 0
        led.times.acquired(acquired, self._shares.now_ms())
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        data = self._of(partition_id)
        data.acquired_records = acquired
        data.records = [
            each.data
            for each in batches
            if each.header.last_offset >= first and each.header.base_offset <= last
        ]
        return sum(each.last_offset - each.first_offset + 1 for each in acquired)

    # -- response -----------------------------------------------------------------------------------

    def _of(self, partition_id: PartitionId) -> ShareFetchPartitionData:
        data = self._data.get(partition_id)
        if data is None:
            data = self._data[partition_id] = ShareFetchPartitionData(
                partition_index=partition_id[1], current_leader=ShareLeaderIdAndEpoch(), records=b""
            )
        return data

    def _fail(self, partition_id: PartitionId, error: KafkaError) -> None:
        data = self._of(partition_id)
        data.error_code, data.error_message = error.code, error.message or None
        counters_of(partition_id, self._context).share_fetch_failures += 1
        self._name_leader(partition_id, error.code)

    def _name_leader(self, partition_id: PartitionId, code: int) -> None:
        if code in LEADERSHIP_ERRORS:
            leader = current_leader(partition_id, self._context)
            self._of(partition_id).current_leader = leader
            self._leaders.append(leader)

    def response(self) -> ShareFetchResponse:
        """What was acknowledged and acquired."""
        topics: dict[bytes, list[ShareFetchPartitionData]] = {}
        for (topic_id, _), data in self._data.items():
            topics.setdefault(topic_id, []).append(data)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=self._shares.config_of(self._key.group_id).lock_ms,
            responses=[
                ShareFetchableTopicResponse(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
            node_endpoints=endpoints(self._leaders, self._context),
        )


async def _answer(processor: FetchProcessor) -> dict[PartitionId, FetchPartitionData]:
    response = processor.answer()
    if inspect.isawaitable(response):
        response = await response
    return {
        (topic.topic_id, each.partition_index): each
        for topic in response.responses
        for each in topic.partitions
    }


def current_leader(partition_id: PartitionId, context: RequestContext) -> ShareLeaderIdAndEpoch:
    """Where a member should go instead; of no broker if that is not known."""
    image = context.broker.metadata
    topic = image.topics_by_id.get(partition_id[0])
    leader = None if topic is None else leader_of(image, topic.name, partition_id[1])
    if leader is None:
        return ShareLeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
    return ShareLeaderIdAndEpoch(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch)


def endpoints(
    leaders: Iterable[ShareLeaderIdAndEpoch], context: RequestContext
) -> list[NodeEndpoint]:
    """The addresses of these leaders."""
    wanted = [LeaderIdAndEpoch(leader_id=each.leader_id) for each in leaders]
    return endpoints_of(context.broker.metadata, context.listener, wanted) if wanted else []


def _batches(records: Any) -> Iterator[_Batch]:
    for piece in records if isinstance(records, list | tuple) else (records or b"",):
        view = memoryview(piece)
        for position, header in iterate_headers(view):
            yield _Batch(header, view[position : position + header.size_in_bytes])


def _aborted(
    batches: Iterable[_Batch], transactions: Iterable[AbortedTransaction]
) -> Iterator[FetchedBatch]:
    """The batches of aborted transactions; the marker that ends one is no record of it."""
    waiting = sorted(transactions, key=lambda each: each.first_offset, reverse=True)
    open_producers: set[int] = set()
    for header, _ in batches:
        while waiting and waiting[-1].first_offset <= header.last_offset:
            open_producers.add(waiting.pop().producer_id)
        if header.producer_id not in open_producers or not header.is_transactional:
            continue
        if header.is_control:
            open_producers.discard(header.producer_id)
        else:
            yield FetchedBatch(header.base_offset, header.last_offset)


def _without(acquired: Iterable[Any], aborted: Sequence[FetchedBatch]) -> Iterator[Any]:
    """The acquired records without these; both are in order."""
    for each in acquired:
        first = each.first_offset
        for batch in aborted:
            if batch.last < first or batch.first > each.last_offset:
                continue
            if batch.first > first:
                yield type(each)(
                    first_offset=first,
                    last_offset=batch.first - 1,
                    delivery_count=each.delivery_count,
                )
            first = batch.last + 1
        if first <= each.last_offset:
            yield type(each)(
                first_offset=first,
                last_offset=each.last_offset,
                delivery_count=each.delivery_count,
            )
