"""Shell: reads from one leader: a task that sends a fetch, appends the answer, and fetches again.

One fetch is in flight at a time, for all partitions that are followed on this leader and not held back. For a new one
another request behind it has the leader answer at once (`broker.server.connection`); in Kafka producers wait for
replica.fetch.wait.max.ms. An answer counts partition by partition, at the offset and leader epoch that were asked for.
An error holds back its partition alone, and is logged when it begins and ends. A broken connection holds back all that
were asked for: nobody knows what the leader took of the request, so the next one opens a new session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.log_truncation import LogTruncation
from broker.replica.fetcher.rate import FetchRate
from broker.replica.fetcher.requests import fetch_request
from broker.replica.fetcher.session import FetchSessionClient, Key
from broker.replica.fetcher.tier_state_machine import TierStateMachine
from broker.replica.follower.followed import FollowedPartition
from broker.replica.follower.partition import EpochQuestion, State, Verdict
from broker.replica.follower.truncation import EpochEnd
from broker.transport.peer import PeerConnection, PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ApiVersionsRequest, FetchRequest
from kafka_ds.protocol.messages.data import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    FetchPartition,
    FetchPartitionData,
    FetchResponse,
)

_LOGGER = logging.getLogger(__name__)

# Bytes that are appended before others get their turn in the event loop.
APPENDED_AT_ONCE_BYTES = 1 << 20
# The first version of Fetch that tells a follower where its log diverges (KIP-595), and that knows topics by id.
FIRST_VERSION_THAT_COMPARES = 12
_LOST_SESSION = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)

Asked = dict[Key, tuple[FollowedPartition, EpochQuestion]]


class Fetcher:
    """The partitions that this broker follows at one other, or its share of them."""

    def __init__(
        self,
        source: int,
        fetcher_id: int,
        around: FetcherContext,
        failed: set[tuple[str, int]],
    ) -> None:
        """`failed` is the broker's: partitions that cannot be followed until metadata change."""
        self._failed = failed
        self.source = source
        self.fetcher_id = fetcher_id
        self.requests = 0
        self.bytes_in = 0
        self._rate = FetchRate(around.clock.monotonic_ms())
        self._around = around
        self._settings = around.settings
        self._partitions: dict[tuple[str, int], FollowedPartition] = {}
        self._unchecked: dict[FollowedPartition, None] = {}
        self._session = FetchSessionClient()
        # Of all topics that were ever asked for: what is to be forgotten has a name, too.
        self._names: dict[bytes, str] = {}
        self.connection: PeerConnection | None = None
        self._compares = True
        self._changed = asyncio.Event()
        self._is_away = False
        self._is_waiting = False
        self._hurrying: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._placing = LogTruncation(self, around)
        self._rebuilding = TierStateMachine(self, around)

    # -- what the manager says ----------------------------------------------------------------

    @property
    def name(self) -> str:
        """As Kafka's thread of this kind is called."""
        return f"ReplicaFetcherThread-{self.fetcher_id}-{self.source}"

    def start(self) -> None:
        """Begin to fetch."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    def stop(self) -> None:
        """Stop fetching."""
        self._partitions.clear()
        self._rebuilding.stop()
        if self._task is not None:
            self._task.cancel()
        if self.connection is not None:
            self.connection.close()

    def add(self, partitions: Iterable[FollowedPartition]) -> None:
        """Fetch these, too; they have been told whom they follow."""
        for partition in partitions:
            self._partitions[partition.key] = partition
            self._unchecked[partition] = None
        self._changed.set()
        if self._is_waiting and self._hurrying is None:
            self._hurrying = asyncio.get_running_loop().create_task(self._hurry())

    def remove(self, partition: FollowedPartition) -> None:
        """Stop fetching this partition: an answer in flight is ignored for it."""
        self._unchecked.pop(partition, None)
        if self._partitions.get(partition.key) is partition:
            del self._partitions[partition.key]

    def wake(self) -> None:
        """The source may be reachable again: fetch partitions at once that were held back because it was not."""
        if self._is_away:
            for partition in self._partitions.values():
                partition.follower.retry()
        self._changed.set()

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[FollowedPartition]:
        return iter(self._partitions.values())

    @property
    def is_dead(self) -> bool:
        """Whether the task has ended by itself, which is a mistake of ours."""
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
            except Exception as error:  # the root of a task: nobody else would hear of it
                _LOGGER.exception("%s has failed", self.name)
                self._source_lost(due, repr(error))

    def _due(self) -> list[FollowedPartition]:
        now_ms = self._around.clock.monotonic_ms()
        return [p for p in self._partitions.values() if not p.is_lost and p.follower.is_due(now_ms)]

    async def _wait(self) -> None:
        """Wait until something has changed, or the first back-off is over."""
        self._changed.clear()
        now_ms = self._around.clock.monotonic_ms()
        times = [
            each.follower.due_ms
            for each in self._partitions.values()
            if each.follower.state is not State.FAILED
        ]
        delay = max(min(times) - now_ms, 1) / 1_000 if times else None
        try:
            async with asyncio.timeout(delay):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _round(self, due: list[FollowedPartition]) -> None:
        """Flush what must be flushed, cut what must be cut, then fetch once."""
        connection = await self._connected()
        if self._unchecked:
            if not self._compares:
                for partition in self._unchecked:
                    partition.follower.compare_first()
            for partition in self._unchecked:
                self._rebuilding.begin_first(partition)
            self._unchecked.clear()
        await self._flush_all(due)
        await self._write_cuts(due)
        cutting = [p for p in due if p.is_free and p.follower.state is State.TRUNCATING]
        if cutting:
            await self._placing.cut_first(cutting)
        await self._fetch(connection)

    async def _connected(self) -> PeerConnection:
        connection = self.connection
        if connection is not None and connection.is_open:
            return connection
        self._session.failed()
        around = self._around
        address = around.address_of(self.source)
        if address is None:
            raise PeerUnreachable(f"broker {self.source} is not registered")
        connection = self.connection = await PeerConnection.connect(
            around.network,
            *address,
            client_id=f"broker-{around.node_id}-fetcher-{self.fetcher_id}",
            timeout_ms=self._settings.replica_socket_timeout_ms,
            receive_buffer_bytes=self._settings.replica_socket_receive_buffer_bytes,
        )
        self._compares = connection.version_of(FetchRequest) >= FIRST_VERSION_THAT_COMPARES
        if self._is_away:
            _LOGGER.info("%s: broker %d is back", self.name, self.source)
            self._is_away = False
        return connection

    def _source_lost(self, due: list[FollowedPartition], why: str) -> None:
        """Nothing came of the round: hold back all that took part."""
        self._session.failed()
        if not self._is_away:
            _LOGGER.warning("%s: %s", self.name, why)
            self._is_away = True
        for partition in due:
            self.hold_back(partition)

    def hold_back(
        self, partition: FollowedPartition, error_code: int = ErrorCode.UNKNOWN_SERVER_ERROR
    ) -> None:
        """Hold the partition back for a while after this answer, unless another fetcher has it by now."""
        if self._partitions.get(partition.key) is not partition:
            return
        now_ms = self._around.clock.monotonic_ms()
        longest_ms = max(self._settings.replica_fetch_backoff_ms, 1)
        partition.follower.delay(now_ms + partition.follower.backoff_ms(error_code, longest_ms))
        # It may be sooner than what is waited for.
        self._changed.set()

    def go_on(self, partition: FollowedPartition) -> None:
        """Fetch it again at once."""
        partition.follower.retry()
        self._changed.set()

    def is_current(self, partition: FollowedPartition, asked: EpochQuestion) -> bool:
        """Whether an answer to this question still has a meaning."""
        is_followed = self._partitions.get(partition.key) is partition and not partition.is_lost
        return is_followed and partition.follower.is_current(asked)

    async def cut(self, partition: FollowedPartition, cut: Callable[[], None]) -> None:
        """Cut a log, durably."""
        await self._placing.cut(partition, cut)

    async def offset_at_leader(
        self, partition: FollowedPartition, timestamp: int
    ) -> tuple[int, int]:
        """An end of the leader's log, and the leader epoch there. Raises KafkaError, PeerUnreachable."""
        return await self._placing.offset_at_leader(partition, timestamp)

    # -- fetching -----------------------------------------------------------------------------

    async def _fetch(self, connection: PeerConnection) -> None:
        now_ms = self._around.clock.monotonic_ms()
        max_bytes = self._settings.replica_fetch_max_bytes
        asked: Asked = {}
        wanted: dict[Key, FetchPartition] = {}
        names = self._names
        wait_ms = self._settings.replica_fetch_wait_max_ms
        for partition in self._partitions.values():
            if not partition.follower.is_ready(now_ms) or not partition.is_free:
                due_ms = partition.follower.due_ms
                if due_ms > now_ms:
                    wait_ms = min(wait_ms, due_ms - now_ms)
                continue
            if self._around.must_wait(partition):
                self.hold_back(partition)
            else:
                key = partition.topic_id, partition.partition
                wanted[key] = partition.wanted(max_bytes)
                asked[key] = partition, partition.follower.question
                names[partition.topic_id] = partition.topic
        if not asked:
            return
        session = self._session.request(wanted)
        request = fetch_request(
            session,
            names,
            self._settings,
            replica_id=self._around.node_id,
            broker_epoch=self._around.broker_epoch(),
            max_wait_ms=wait_ms,
        )
        if session.to_forget:
            self._names = {topic_id: names[topic_id] for topic_id, _ in wanted}
        self.requests += 1
        timeout_ms = self._settings.replica_socket_timeout_ms
        self._is_waiting = True
        try:
            response: FetchResponse = await connection.ask(request, timeout_ms=timeout_ms)
        finally:
            self._is_waiting = False
        by_id = connection.version_of(FetchRequest) >= FIRST_VERSION_WITH_TOPIC_IDS
        ids = {} if by_id else {name: topic_id for topic_id, name in names.items()}
        await self._take(response, asked, ids)

    async def _hurry(self) -> None:
        """Have the answer that is under way come now."""
        try:
            if self.connection is not None:
                timeout_ms = self._settings.replica_socket_timeout_ms
                await self.connection.ask(ApiVersionsRequest(), timeout_ms=timeout_ms)
        except PeerUnreachable:
            pass  # So has the fetch failed.
        finally:
            self._hurrying = None

    async def _take(
        self,
        response: FetchResponse,
        asked: Asked,
        ids: dict[str, bytes],
    ) -> None:
        """Take an answer, if the session says that it is one."""
        answered = {
            (ids.get(topic.topic, topic.topic_id), data.partition_index): data
            for topic in response.responses
            for data in topic.partitions
        }
        code = response.error_code
        if not self._session.answered(code, response.session_id, answered):
            _LOGGER.info("%s: the fetch session begins anew: %s", self.name, ErrorCode(code).name)
            if code not in _LOST_SESSION:
                for partition, _ in asked.values():
                    self.hold_back(partition)
            return
        appended = 0
        taken = []
        for key, data in answered.items():
            found = asked.get(key)
            if found is None or not self.is_current(*found):
                continue
            partition, question = found
            taken.append(partition)
            with self.guard(partition):
                appended += await self._take_one(partition, question, data)
            if appended >= APPENDED_AT_ONCE_BYTES:
                appended = 0
                await asyncio.sleep(0)
        await self._flush_all(taken)
        await self._write_cuts(taken)

    async def _write_cuts(self, partitions: list[FollowedPartition]) -> None:
        """Make truncations of these partitions durable, if there are any."""
        unwritten = [partition for partition in partitions if partition.is_cut_unwritten]
        if not unwritten:
            return
        try:
            await self._placing.write_cuts(unwritten)
        except OSError as error:
            for partition in unwritten:
                if partition.is_cut_unwritten:
                    self.failed(partition, error)

    async def _take_one(
        self,
        partition: FollowedPartition,
        asked: EpochQuestion,
        data: FetchPartitionData,
    ) -> int:
        """Do what a partition's answer asks for; how many bytes were appended."""
        follower = partition.follower
        diverging = data.diverging_epoch
        match follower.judge(data.error_code, is_diverging=diverging is not None):
            case Verdict.APPEND:
                return self._append(partition, asked, data)
            case Verdict.TRUNCATE:
                assert diverging is not None
                end = EpochEnd(epoch=diverging.epoch, end_offset=diverging.end_offset)
                self._placing.cut_now(partition, partial(partition.truncate, end))
            case Verdict.OUT_OF_RANGE:
                await self._placing.find(partition, asked)
            case Verdict.TIERED:
                self._rebuilding.begin(partition, asked)
            case Verdict.FAIL:
                self._fail(partition, ErrorCode(data.error_code).name)
            case Verdict.RETRY:
                code = ErrorCode(data.error_code)
                said = f"broker {self.source} answers {code.name}"
                if code is ErrorCode.CORRUPT_MESSAGE:  # The leader's log says where.
                    self._say(partition, logging.ERROR, f"{said} at offset {asked.fetch_offset}")
                else:
                    self._say(partition, logging.INFO, said)
                self.hold_back(partition, data.error_code)
        return 0

    def _append(
        self, partition: FollowedPartition, asked: EpochQuestion, data: FetchPartitionData
    ) -> int:
        now_ms = self._around.clock.now_ms()
        try:
            appended = partition.append(data, asked.leader_epoch, now_ms)
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            where = f"from broker {self.source} at offset {partition.log.log_end_offset}"
            said = f"Found invalid messages during fetch {where}: {error}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, said) from error
        if not partition.is_unflushed:
            self._over(partition)
        if appended:
            # To the end of the line: partitions that got nothing for long are asked for first.
            self._partitions[partition.key] = self._partitions.pop(partition.key)
            self.bytes_in += appended
            self._around.came_in(partition, appended)
        return appended

    async def _flush_all(self, partitions: list[FollowedPartition]) -> None:
        """Flush those of these partitions whose next fetch would tell the leader of what flush.messages wants flushed.

        That is what was appended now; or what was left when the disk was full, the connection was lost, or another
        fetcher had the partition.
        """
        unflushed = [each for each in partitions if each.is_unflushed and not each.is_lost]
        if unflushed:
            await asyncio.gather(*(self._flush(partition) for partition in unflushed))

    async def _flush(self, partition: FollowedPartition) -> None:
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def flushed(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        with self.guard(partition):
            partition.log.flush(then=flushed)
            error = await done
            if error is not None and not partition.is_lost:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            partition.flushed()
            self._over(partition)

    # -- what may go wrong --------------------------------------------------------------------

    def guard(self, partition: FollowedPartition) -> _Guard:
        """Around what may go wrong with one partition."""
        return _Guard(self, partition)

    def failed(self, partition: FollowedPartition, error: Exception) -> bool:
        """Hold a partition back for its error, or give it up; False where it is the connection's."""
        if isinstance(error, PeerUnreachable):
            return False
        is_fenced = isinstance(error, KafkaError) and error.code is ErrorCode.FENCED_LEADER_EPOCH
        if not isinstance(error, KafkaError | OSError):
            _LOGGER.error("%s-%d", *partition.key, exc_info=error)
            self._fail(partition, str(error))
        elif is_fenced or partition.log.storage_error is not None:
            self._fail(partition, str(error))
        else:
            # Damage on the way, as likely as not, or a disk that is full: the same bytes are asked for again.
            self._say(partition, logging.ERROR, str(error))
            self.hold_back(partition)
        return True

    def _say(self, partition: FollowedPartition, level: int, what: str) -> None:
        """What holds a partition back; once, however often it is tried."""
        if partition.trouble != (level, what):
            partition.trouble = level, what
            _LOGGER.log(level, "%s-%d: %s", *partition.key, what)

    def _over(self, partition: FollowedPartition) -> None:
        """What held the partition back is over."""
        if partition.trouble is not None:
            level, what = partition.trouble
            partition.trouble = None
            if level >= logging.ERROR:
                _LOGGER.info("%s-%d goes on after: %s", *partition.key, what)

    def _fail(self, partition: FollowedPartition, why: str) -> None:
        if self._partitions.get(partition.key) is not partition:
            return
        _LOGGER.error("%s-%d is not followed any more: %s", *partition.key, why)
        partition.follower.fail()
        self.remove(partition)
        self._failed.add(partition.key)


class _Guard:
    """What goes wrong inside is one partition's trouble, unless the connection is lost."""

    __slots__ = ("_fetcher", "_partition")

    def __init__(self, fetcher: Fetcher, partition: FollowedPartition) -> None:
        self._fetcher = fetcher
        self._partition = partition

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, Exception) and self._fetcher.failed(self._partition, error)
