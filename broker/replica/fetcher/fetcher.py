"""Shell: fetches from one leader: a task that sends a fetch, appends the response, and fetches again.

One fetch is in flight at a time, for all partitions that are followed on this leader and not held back. When another
partition is added, a second request makes the leader answer the first at once (`broker.server.connection`); in Kafka
producers wait for replica.fetch.wait.max.ms. A response counts partition by partition, at the offset and leader epoch
of the request. A broken connection holds back all partitions of the request, and the next fetch opens a new session:
what the leader took of the request is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from functools import partial

from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.fetched_partitions import FetchedPartitions
from broker.replica.fetcher.leader_end_point import LeaderEndPoint
from broker.replica.fetcher.log_truncation import LogTruncation
from broker.replica.fetcher.rate import FetchRate
from broker.replica.fetcher.requests import fetch_request
from broker.replica.fetcher.session import FetchSessionClient
from broker.replica.fetcher.tier_state_machine import TierStateMachine
from broker.replica.follower.partition import FollowerPartition
from broker.replica.follower.state import FetchPosition, FetchState, FollowerAction
from broker.transport.peer import PeerConnection, PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.leader_epoch_end import LeaderEpochEnd
from kafka_ds.protocol.messages import ApiVersionsRequest, FetchRequest
from kafka_ds.protocol.messages.data import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    FetchPartition,
    FetchPartitionData,
    FetchResponse,
)
from kafka_ds.protocol.topic_partition import PartitionId, TopicPartition

_LOGGER = logging.getLogger(__name__)

# Bytes appended before other tasks get their turn in the event loop.
APPENDED_AT_ONCE_BYTES = 1 << 20
# The first version of Fetch that reports where a follower's log diverges (KIP-595), and that names topics by id.
FIRST_VERSION_THAT_COMPARES = 12
_LOST_SESSION = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)

FetchPositions = dict[PartitionId, tuple[FollowerPartition, FetchPosition]]


class Fetcher:
    """The partitions that this broker follows on one other broker, or one fetcher's share of them."""

    def __init__(
        self,
        source: int,
        fetcher_id: int,
        context: FetcherContext,
        failed: set[TopicPartition],
    ) -> None:
        """`failed` is the broker's: partitions that cannot be followed until metadata change."""
        self._source = source
        self.fetcher_id = fetcher_id
        self._leader = LeaderEndPoint(source, fetcher_id, context)
        self._partitions = FetchedPartitions(context, failed)
        self.requests = 0
        self.bytes_in = 0
        self._rate = FetchRate(context.clock.monotonic_ms())
        self._context = context
        self._settings = context.settings
        self._session = FetchSessionClient()
        # Of all topics that were ever fetched: one that is to be forgotten needs its name, too.
        self._names: dict[bytes, str] = {}
        self._compares = True
        self._is_away = False
        self._is_waiting = False
        self._hurrying: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._truncation = LogTruncation(self._leader, self._partitions, context)
        self._tier_states = TierStateMachine(
            self._leader, self._partitions, self._truncation, context
        )

    # -- calls of the manager -----------------------------------------------------------------

    @property
    def name(self) -> str:
        """Named as Kafka names this kind of thread."""
        return f"ReplicaFetcherThread-{self.fetcher_id}-{self._source}"

    def start(self) -> None:
        """Start fetching."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    def stop(self) -> None:
        """Stop fetching."""
        self._partitions.clear()
        self._tier_states.stop()
        if self._task is not None:
            self._task.cancel()
        self._leader.close()

    def add(self, partitions: Iterable[FollowerPartition]) -> None:
        """Fetch these, too; they know their leader."""
        for partition in partitions:
            self._partitions.add(partition)
        self._partitions.changed.set()
        if self._is_waiting and self._hurrying is None:
            self._hurrying = asyncio.get_running_loop().create_task(self._hurry())

    def remove(self, partition: FollowerPartition) -> None:
        """Stop fetching this partition; a response in flight is ignored for it."""
        self._partitions.remove(partition)

    def wake(self) -> None:
        """The source may be reachable again: retry the partitions that were held back for that."""
        if self._is_away:
            for partition in self._partitions:
                partition.follower.retry()
        self._partitions.changed.set()

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[FollowerPartition]:
        return iter(self._partitions)

    @property
    def is_dead(self) -> bool:
        """Whether the task has ended by itself, which is a bug."""
        task = self._task
        return task is not None and task.done() and not task.cancelled()

    def rate(self, now_ms: int) -> float:
        """Fetches a second, over the last minute about."""
        return self._rate.of(self.requests, now_ms)

    # -- the loop -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            due = self._due()
            if not due:
                await self._wait()
                continue
            try:
                await self._round(due)
            except PeerUnreachable as error:
                self._source_lost(due, str(error))
            except Exception as error:  # The root of a task: an error would go unnoticed.
                _LOGGER.exception("%s: Unexpected error while fetching", self.name)
                self._source_lost(due, repr(error))

    def _due(self) -> list[FollowerPartition]:
        now_ms = self._context.clock.monotonic_ms()
        return [p for p in self._partitions if not p.is_lost and p.follower.is_due(now_ms)]

    async def _wait(self) -> None:
        """Wait until something has changed, or the first back-off is over."""
        self._partitions.changed.clear()
        now_ms = self._context.clock.monotonic_ms()
        times = [
            each.follower.due_ms
            for each in self._partitions
            if each.follower.state is not FetchState.FAILED
        ]
        delay = max(min(times) - now_ms, 1) / 1_000 if times else None
        try:
            async with asyncio.timeout(delay):
                await self._partitions.changed.wait()
        except TimeoutError:
            pass

    async def _round(self, due: list[FollowerPartition]) -> None:
        """Flush and truncate where needed, then fetch once."""
        connection = await self._connected()
        unchecked = self._partitions.unchecked
        if unchecked:
            if not self._compares:
                for partition in unchecked:
                    partition.follower.truncate_before_fetching()
            for partition in unchecked:
                self._tier_states.begin_first(partition)
            unchecked.clear()
        await self._flush_all(due)
        await self._write_truncations(due)
        truncating = [
            p for p in due if p.is_fetchable and p.follower.state is FetchState.TRUNCATING
        ]
        if truncating:
            await self._truncation.truncate_first(truncating)
        await self._fetch(connection)

    async def _connected(self) -> PeerConnection:
        connection = self._leader.connection
        if connection is not None and connection.is_open:
            return connection
        self._session.failed()
        connection = await self._leader.connect()
        self._compares = connection.version_of(FetchRequest) >= FIRST_VERSION_THAT_COMPARES
        if self._is_away:
            _LOGGER.info("%s: broker %d is back", self.name, self._source)
            self._is_away = False
        return connection

    def _source_lost(self, due: list[FollowerPartition], why: str) -> None:
        """The round failed: hold back all partitions of it."""
        self._session.failed()
        if not self._is_away:
            _LOGGER.warning(
                "%s: Error in fetching from broker %d: %s", self.name, self._source, why
            )
            self._is_away = True
        for partition in due:
            self._partitions.hold_back(partition)

    # -- fetching -----------------------------------------------------------------------------

    async def _fetch(self, connection: PeerConnection) -> None:
        now_ms = self._context.clock.monotonic_ms()
        max_bytes = self._settings.replica_fetch_max_bytes
        requested: FetchPositions = {}
        wanted: dict[PartitionId, FetchPartition] = {}
        names = self._names
        wait_ms = self._settings.replica_fetch_wait_max_ms
        for partition in self._partitions:
            if not partition.follower.is_ready(now_ms) or not partition.is_fetchable:
                due_ms = partition.follower.due_ms
                if due_ms > now_ms:
                    wait_ms = min(wait_ms, due_ms - now_ms)
                continue
            if self._context.must_wait(partition):
                self._partitions.hold_back(partition)
            else:
                key = partition.topic_id, partition.partition
                wanted[key] = partition.to_fetch_partition(max_bytes)
                requested[key] = partition, partition.follower.fetch_position
                names[partition.topic_id] = partition.topic
        if not requested:
            return
        session = self._session.request(wanted)
        request = fetch_request(
            session,
            names,
            self._settings,
            replica_id=self._context.node_id,
            broker_epoch=self._context.broker_epoch(),
            max_wait_ms=wait_ms,
        )
        if session.to_forget:
            self._names = {topic_id: names[topic_id] for topic_id, _ in wanted}
        self.requests += 1
        timeout_ms = self._settings.replica_socket_timeout_ms
        self._is_waiting = True
        try:
            response: FetchResponse = await connection.send(request, timeout_ms=timeout_ms)
        finally:
            self._is_waiting = False
        by_id = connection.version_of(FetchRequest) >= FIRST_VERSION_WITH_TOPIC_IDS
        ids = {} if by_id else {name: topic_id for topic_id, name in names.items()}
        await self._process_response(response, requested, ids)

    async def _hurry(self) -> None:
        """Make the leader answer the fetch in flight now."""
        try:
            await self._leader.send(ApiVersionsRequest())
        except PeerUnreachable:
            pass  # The fetch has failed, too.
        finally:
            self._hurrying = None

    async def _process_response(
        self,
        response: FetchResponse,
        requested: FetchPositions,
        ids: dict[str, bytes],
    ) -> None:
        """Process a response, if the session accepts it."""
        answered = {
            (ids.get(topic.topic, topic.topic_id), data.partition_index): data
            for topic in response.responses
            for data in topic.partitions
        }
        code = response.error_code
        if not self._session.answered(code, response.session_id, answered):
            _LOGGER.info("%s: starting a new fetch session: %s", self.name, ErrorCode(code).name)
            if code not in _LOST_SESSION:
                for partition, _ in requested.values():
                    self._partitions.hold_back(partition)
            return
        appended = 0
        fetched = []
        for key, data in answered.items():
            found = requested.get(key)
            if found is None or not self._partitions.is_current(*found):
                continue
            partition, position = found
            fetched.append(partition)
            with self._partitions.guard(partition):
                appended += await self._process_partition_data(partition, position, data)
            if appended >= APPENDED_AT_ONCE_BYTES:
                appended = 0
                await asyncio.sleep(0)
        await self._flush_all(fetched)
        await self._write_truncations(fetched)

    async def _write_truncations(self, partitions: list[FollowerPartition]) -> None:
        """Make truncations of these partitions durable, if there are any."""
        unwritten = [partition for partition in partitions if partition.is_truncation_unwritten]
        if not unwritten:
            return
        try:
            await self._truncation.write_truncations(unwritten)
        except OSError as error:
            for partition in unwritten:
                if partition.is_truncation_unwritten:
                    self._partitions.failed(partition, error)

    async def _process_partition_data(
        self,
        partition: FollowerPartition,
        position: FetchPosition,
        data: FetchPartitionData,
    ) -> int:
        """Do what a partition's response asks for; returns the bytes appended."""
        follower = partition.follower
        diverging = data.diverging_epoch
        match follower.action_for(data.error_code, is_diverging=diverging is not None):
            case FollowerAction.APPEND:
                return self._append(partition, position, data)
            case FollowerAction.TRUNCATE:
                assert diverging is not None
                end = LeaderEpochEnd(epoch=diverging.epoch, end_offset=diverging.end_offset)
                self._truncation.truncate_now(partition, partial(partition.truncate, end))
            case FollowerAction.OUT_OF_RANGE:
                await self._truncation.find(partition, position)
            case FollowerAction.TIERED:
                self._tier_states.begin(partition, position)
            case FollowerAction.FAIL:
                self._partitions.give_up(partition, ErrorCode(data.error_code).name)
            case FollowerAction.RETRY:
                code = ErrorCode(data.error_code)
                said = f"broker {self._source} answers {code.name}"
                if code is ErrorCode.CORRUPT_MESSAGE:  # The leader's log decides where.
                    self._partitions.log_trouble(
                        partition, logging.ERROR, f"{said} at offset {position.fetch_offset}"
                    )
                else:
                    self._partitions.log_trouble(partition, logging.INFO, said)
                self._partitions.hold_back(partition, data.error_code)
        return 0

    def _append(
        self, partition: FollowerPartition, position: FetchPosition, data: FetchPartitionData
    ) -> int:
        now_ms = self._context.clock.now_ms()
        try:
            appended = partition.append(data, position.leader_epoch, now_ms)
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            self._context.topic_metrics.of(partition.topic).invalid_checksums += 1
            where = f"from broker {self._source} at offset {partition.log.log_end_offset}"
            said = f"Found invalid messages during fetch {where}: {error}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, said) from error
        if not partition.is_unflushed:
            self._partitions.log_recovery(partition)
        if appended:
            # To the end of the line: partitions that got nothing for longer come first.
            self._partitions.put_last(partition)
            self.bytes_in += appended
            self._context.came_in(partition, appended)
        return appended

    async def _flush_all(self, partitions: list[FollowerPartition]) -> None:
        """Flush the partitions whose next fetch would acknowledge records that flush.messages wants on the disk first.

        These were appended now; or they were left when the disk was full, the connection was lost, or another fetcher
        had the partition.
        """
        unflushed = [each for each in partitions if each.is_unflushed and not each.is_lost]
        if unflushed:
            await asyncio.gather(*(self._flush(partition) for partition in unflushed))

    async def _flush(self, partition: FollowerPartition) -> None:
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def flushed(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        with self._partitions.guard(partition):
            partition.log.flush(then=flushed)
            error = await done
            if error is not None and not partition.is_lost:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            partition.flushed()
            self._partitions.log_recovery(partition)
