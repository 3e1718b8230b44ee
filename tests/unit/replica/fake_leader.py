"""A leader that speaks the wire, tells the truth of a log, and fails on command."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

from broker.config.broker import BrokerConfig
from broker.config.dynamic import DynamicBrokerConfig
from broker.log.config import LogConfig
from broker.log.log import Log
from broker.metadata.events import Endpoint
from broker.metadata.image import MetadataImage
from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.fetchers import Fetchers
from broker.replica.follower.partition import FollowerPartition
from broker.replica.follower.state import FollowerState
from broker.replica.topic_metrics import topic_metrics
from kafka_ds.process.seams import Background
from kafka_ds.process.system import SystemClock, SystemNetwork
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import RequestHeader
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka_ds.protocol.messages.cluster import ApiVersion
from kafka_ds.protocol.messages.data import (
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
)
from kafka_ds.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochEndOffset,
    OffsetForLeaderTopicResult,
)
from kafka_ds.protocol.types import api_key_of
from tests.fakes.clock import ManualClock
from tests.fakes.cluster import registration_of
from tests.fakes.memory_disk import MemoryDisk
from tests.fakes.scripted_broker import frame_of, next_request
from tests.unit.replica.followed_logs import SMALL, answer, append, open_log

LEADER = 2
SETTINGS = BrokerConfig(
    replica_fetch_backoff_ms=1, replica_fetch_wait_max_ms=5, replica_socket_timeout_ms=30_000
)
SERVED = (ApiVersionsRequest, FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest)


class FakeLeader:
    """Leads the log of each (topic, partition) in `logs`, in the leader epoch of `epochs`."""

    def __init__(self, *, fetch_version: int = 18) -> None:
        self.logs: dict[tuple[str, int], Log] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self.watermarks: dict[tuple[str, int], int] = {}
        self.fetch_version = fetch_version
        self.faults: list[str] = []  # one for each fetch, from the first
        self.errors: dict[tuple[str, int], list[ErrorCode]] = {}  # one for each answer
        self.requests: list[Any] = []
        self.keeps_sessions = True
        self.session: dict[tuple[str, int], FetchPartition] = {}
        self.session_epoch = 0
        self.connections = 0
        self.released = asyncio.Event()
        self._late = asyncio.Event()

    def lead(self, log: Log, epoch: int) -> None:
        key = log.topic, log.partition
        self.logs[key] = log
        self.epochs[key] = epoch
        log.assign_leader_epoch(epoch, log.log_end_offset)

    @property
    def fetches(self) -> list[FetchRequest]:
        return [each for each in self.requests if isinstance(each, FetchRequest)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(
            asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError
        ):
            while True:
                await self._answer(*await next_request(reader), writer)
        writer.close()

    async def _answer(
        self, header: RequestHeader, request: Any, writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append(request)
        response = self._respond(request)
        fault = self.faults.pop(0) if self.faults and isinstance(request, FetchRequest) else ""
        if not (isinstance(response, FetchResponse) and await self._fail(fault, response, writer)):
            whole = frame_of(response, header)
            writer.write(whole[: len(whole) // 2] if fault == "half" else whole)
            if fault == "twice":
                writer.write(whole)
            if fault == "half":
                writer.close()
        await writer.drain()

    async def _fail(
        self, fault: str, response: FetchResponse, writer: asyncio.StreamWriter
    ) -> bool:
        """Spoil an answer, or give none."""
        if fault == "gone":
            writer.close()
            return True
        if fault == "late":
            await self._late.wait()
            return True
        if fault in ("slow", "dying"):
            await self.released.wait()
        if fault == "dying":
            writer.close()
            return True
        if fault == "forgotten":
            response.error_code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            response.responses, self.session = [], {}
        for topic in response.responses:
            for data in topic.partitions:
                if data.records and fault == "damaged":
                    data.records = bytes(data.records[:-1]) + bytes([data.records[-1] ^ 1])
                elif data.records and fault == "cut":
                    data.records = bytes(data.records[:-7])
        return False

    def _respond(self, request: Any) -> Any:
        if isinstance(request, ApiVersionsRequest):
            keys = [
                ApiVersion(api_key=api_key_of(each), min_version=0, max_version=30)
                for each in SERVED
            ]
            keys[1].max_version = self.fetch_version
            return ApiVersionsResponse(api_keys=keys)
        if isinstance(request, FetchRequest):
            return self._fetch(request)
        if isinstance(request, ListOffsetsRequest):
            return self.list_offsets(request)
        return self._epochs(request)

    # -- Fetch --------------------------------------------------------------------------------

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        names = {log.topic_id: topic for (topic, _), log in self.logs.items()}
        if request.session_epoch == 0:
            self.session = {}
            self.session_epoch = 1
        elif not self.session or request.session_epoch != self.session_epoch:
            return FetchResponse(
                error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, responses=[], session_id=9
            )
        else:
            self.session_epoch += 1
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self.session.pop((names[forgotten.topic_id], index), None)
        for topic in request.topics:
            name = topic.topic or names[topic.topic_id]
            for wanted in topic.partitions:
                self.session[name, wanted.partition] = wanted
        responses = []
        for (name, index), wanted in self.session.items():
            data = self._partition((name, index), wanted)
            is_news = data.records or data.error_code or data.diverging_epoch is not None
            if is_news or request.session_epoch == 0:
                topic_id = self.logs[name, index].topic_id
                responses.append(
                    FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=[data])
                )
        session_id = 9 if self.keeps_sessions else 0
        return FetchResponse(responses=responses, session_id=session_id)

    def _partition(self, key: tuple[str, int], wanted: FetchPartition) -> FetchPartitionData:
        log, epoch = self.logs[key], self.epochs[key]
        code = ErrorCode.NONE
        if self.errors.get(key):
            code = self.errors[key].pop(0)
        elif wanted.current_leader_epoch < epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        elif wanted.current_leader_epoch > epoch:
            code = ErrorCode.UNKNOWN_LEADER_EPOCH
        if code:
            return FetchPartitionData(
                partition_index=key[1], error_code=code, high_watermark=-1, records=b""
            )
        data = answer(log, wanted, watermark=self.watermarks.get(key, 0))
        data.partition_index = key[1]
        return data

    # -- offsets ------------------------------------------------------------------------------

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            found = []
            for wanted in topic.partitions:
                log = self.logs[topic.name, wanted.partition_index]
                end = wanted.timestamp == -1
                offset = log.log_end_offset if end else log.log_start_offset
                epoch = log.leader_epochs.epoch_for_offset(offset)
                found.append(
                    ListOffsetsPartitionResponse(
                        partition_index=wanted.partition_index, offset=offset, leader_epoch=epoch
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
        return ListOffsetsResponse(topics=topics)

    def _epochs(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            ends = []
            for wanted in topic.partitions:
                log = self.logs[topic.topic, wanted.partition]
                epoch, end = log.leader_epochs.end_offset_for(
                    wanted.leader_epoch, log.log_end_offset
                )
                ends.append(
                    OffsetForLeaderEpochEndOffset(
                        partition=wanted.partition, leader_epoch=epoch, end_offset=end
                    )
                )
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends))
        return OffsetForLeaderEpochResponse(topics=topics)


class Follower:
    """The fetchers of a broker that follows the fake leader, and what it has registered."""

    def __init__(self, address: tuple[str, int], settings: BrokerConfig) -> None:
        self.image = MetadataImage()
        self.register(address)
        self.written = 0
        self.dynamic_config = DynamicBrokerConfig(settings)
        self.context = FetcherContext(
            network=SystemNetwork(),
            clock=SystemClock(),
            image=self.image,
            node_id=1,
            listener="PLAINTEXT",
            config=self.dynamic_config,
            logs=cast(Any, self),
            remote_log_manager=None,
            topic_metrics=topic_metrics(),
        )
        self.fetchers = Fetchers(self.context)
        self.partitions: list[FollowerPartition] = []

    async def checkpoint_recovery_points(self, _folder: str) -> None:
        """As the broker's logs."""
        self.written += 1

    def register(self, address: tuple[str, int]) -> None:
        endpoint = Endpoint(listener="PLAINTEXT", host=address[0], port=address[1])
        self.image.brokers[LEADER] = registration_of(LEADER, endpoints=(endpoint,))

    def follow(self, log: Log, epoch: int, *, watermark: int = 0) -> FollowerPartition:
        partition = FollowerPartition(log, FollowerState(high_watermark=watermark))
        self.partitions.append(partition)
        self.again(partition, epoch)
        return partition

    def again(self, partition: FollowerPartition, epoch: int) -> None:
        partition.follow(LEADER, epoch)
        self.fetchers.update(add=[partition])


@contextlib.asynccontextmanager
async def following(
    leader: FakeLeader, settings: BrokerConfig = SETTINGS
) -> AsyncIterator[Follower]:
    """A served leader and a broker that follows it."""
    server = await asyncio.start_server(leader.serve, "127.0.0.1", 0)
    follower = Follower(server.sockets[0].getsockname()[:2], settings)
    try:
        yield follower
        assert not any(fetcher.is_dead for fetcher in follower.fetchers)
    finally:
        follower.fetchers.stop()
        server.close()


def leading(*values: str, epoch: int = 1) -> tuple[FakeLeader, Log]:
    """A leader of t-0 in this epoch, with these records."""
    leader, log = FakeLeader(), open_log(MemoryDisk())
    leader.lead(log, epoch)
    for value in values:
        append(log, value, epoch)
    return leader, log


def diverge(leader: FakeLeader, log: Log, other: Log) -> None:
    """What a leader has in its epoch 2, and a follower's log that departs from it after the first record."""
    for each in (log, other):
        append(each, "both", 1)
    append(other, "never committed", 1)
    other.flush(wait=True)
    leader.lead(log, 2)
    append(log, "new", 2)


def log_of(
    topic: str,
    index: int,
    config: LogConfig = SMALL,
    background: Background | None = None,
) -> Log:
    log = Log.open(
        f"/d/{topic}-{index}",
        config,
        MemoryDisk(),
        ManualClock(),
        topic=topic,
        partition=index,
        topic_id=topic.encode() * 16,
        background=background,
    )
    log.update_high_watermark(0)
    return log


def has_all(partition: FollowerPartition, leader: Log) -> bool:
    return partition.log.log_end_offset == leader.log_end_offset
