"""A broker in the test's own process: every request goes through the real codec, dispatcher, handlers and logs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from broker.broker_server import BrokerServer
from broker.config.loader import BrokerConfig, from_given
from broker.principal import ANONYMOUS, Principal
from broker.registry import NO_CLIENT, REGISTRY, ClientInformation
from broker.server.dispatch import Dispatcher, Waiting
from kafka_ds.process.system import SystemClock, SystemDisk, SystemNetwork
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.frame import decode_response, encode_request
from kafka_ds.protocol.messages import (
    RESPONSES,
    CreateTopicsRequest,
    FetchRequest,
    ProduceRequest,
)
from kafka_ds.protocol.messages.data import (
    FetchPartition,
    FetchPartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
)
from kafka_ds.protocol.messages.topics import CreatableTopicConfig
from kafka_ds.protocol.types import message_info
from kafka_ds.records.batch import Codec, Record, build_batch, iterate_headers, read_records
from kafka_ds.segments.producers import AppendOrigin
from tests.requests import build

LISTENER = "PLAINTEXT"
NOW_MS = 1_700_000_000_000


class InProcess:
    """A started broker and the means to ask it."""

    def __init__(self, owner: BrokerServer) -> None:
        self.owner = owner
        self.node = owner.broker
        self.dispatcher = Dispatcher(REGISTRY, self.node, owner.metrics.net)

    def exchange(self, **parts: Any) -> None:
        """Requests that are asked here meet other parts from now on; the broker itself keeps its own."""
        self.node = dataclasses.replace(self.node, **parts)
        self.dispatcher = Dispatcher(REGISTRY, self.node, self.owner.metrics.net)

    async def ask(
        self,
        request: Any,
        version: int,
        *,
        client_id: str = "test",
        principal: Principal = ANONYMOUS,
        client: ClientInformation = NO_CLIENT,
    ) -> Any:
        """The decoded answer, or None if the request has none. An exception here would close a real connection."""
        waiting = self.begin(
            request, version, client_id=client_id, principal=principal, client=client
        )
        if not isinstance(waiting, Waiting):
            return waiting
        try:
            result, error = await waiting.result, None
        except Exception as raised:
            result, error = None, raised
        return self._decoded(request, version, self.dispatcher.finish(waiting, result, error))

    def begin(
        self,
        request: Any,
        version: int,
        *,
        client_id: str = "test",
        principal: Principal = ANONYMOUS,
        client: ClientInformation = NO_CLIENT,
    ) -> Any:
        """The decoded answer if it is there at once, else an awaitable of it."""
        frame = bytearray(encode_request(request, version, 7, client_id))
        outcome = self.dispatcher.handle(
            memoryview(frame)[4:], "127.0.0.1", LISTENER, perf_counter(), principal, client
        )
        if isinstance(outcome, Waiting):
            return outcome
        return self._decoded(request, version, outcome)

    def _decoded(self, request: Any, version: int, parts: Any) -> Any:
        if parts is None:
            return None
        key = message_info(type(request)).key
        assert key is not None
        whole = b"".join(parts)
        assert int.from_bytes(whole[:4], "big") == len(whole) - 4
        correlation_id, response = decode_response(RESPONSES[key], memoryview(whole)[4:], version)
        assert correlation_id == 7
        return response

    async def create(self, name: str, partitions: int = 1, **configs: object) -> bytes:
        """Create a topic and return its id; settings have underscores for dots."""
        wanted = [
            CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in configs.items()
        ]
        response = await self.ask(
            build(
                CreateTopicsRequest,
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=wanted,
            ),
            7,
        )
        assert response.topics[0].error_code == ErrorCode.NONE, response
        topic_id: bytes = response.topics[0].topic_id
        return topic_id

    async def produce(
        self, topic: str, batch: bytes, *, partition: int = 0, acks: int = -1, version: int = 9
    ) -> PartitionProduceResponse:
        """Append one batch, and return the partition's answer."""
        response = await self.ask(produce_request(topic, batch, partition, acks=acks), version)
        answer: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return answer

    def append_own(self, batch: bytes) -> None:
        """Append a batch to t-0 as coordinators do."""
        partition = self.node.replica_manager.get("t", 0)
        records = memoryview(bytearray(batch))
        partition.append(records, acks=1, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)

    async def fetch(
        self, topic: str, offset: int, *, partition: int = 0, version: int = 12, **options: Any
    ) -> FetchPartitionData:
        """Fetch one partition, and return its answer."""
        response = await self.ask(fetch_request(topic, offset, partition, **options), version)
        assert response.error_code == ErrorCode.NONE
        data: FetchPartitionData = response.responses[0].partitions[0]
        return data

    async def cut_off(self) -> None:
        """Nothing goes out or comes in any more, as after SIGKILL; what asks it in this process is still answered."""
        for task in self.node.member.tasks.values():
            task.cancel()
        for peers in self.node.member.peers:
            peers.close()
        await self.owner.server.stop_accepting()
        for connection in self.owner.server.connections:
            connection.abort()


@contextlib.asynccontextmanager
async def in_process(folder: Path, **settings: object) -> AsyncIterator[InProcess]:
    """A started node, without a tier unless the settings (underscores for dots) enable it."""
    node = new_node(folder, **settings)
    await node.start()
    try:
        yield InProcess(node)
    finally:
        await node.stop()


def new_node(folder: Path, **settings: object) -> BrokerServer:
    """As `in_process`, but not started."""
    return BrokerServer(config_of(folder, **settings), SystemClock(), SystemDisk(), SystemNetwork())


def config_of(folder: Path, **settings: object) -> BrokerConfig:
    """The settings of a node without a tier, as `in_process` is given them."""
    given = {
        "listeners": f"{LISTENER}://127.0.0.1:0",
        "log.dirs": folder / "log",
        "lake.uri": folder / "lake",
        "remote.log.storage.system.enable": "false",
    }
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    return from_given({name: (str(value), "test") for name, value in given.items()})


class Cluster:
    """Nodes on one lake, in one event loop, that talk over real sockets; their timeouts are short."""

    SETTINGS: Mapping[str, object] = {
        "broker_session_timeout_ms": 1_000,
        "broker_heartbeat_interval_ms": 100,
        "controller_lease_interval_ms": 200,
    }

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.settings = {**self.SETTINGS, **settings}
        self.nodes: dict[int, InProcess] = {}

    async def start(self, node_id: int, **settings: object) -> InProcess:
        """Start a broker; it is unfenced when this returns."""
        given = {
            "node_id": node_id,
            "log_dirs": self.folder / f"log-{node_id}",
            **self.settings,
            **settings,
        }
        node = new_node(self.folder, **given)
        await node.start()
        self.nodes[node_id] = InProcess(node)
        return self.nodes[node_id]

    async def stop(self, node_id: int) -> None:
        """Stop a broker as SIGTERM does."""
        await self.nodes.pop(node_id).owner.stop()

    @property
    def controller(self) -> InProcess:
        """The active controller."""
        (found,) = [each for each in self.nodes.values() if each.node.metadata_driver.is_active]
        return found

    @property
    def others(self) -> list[InProcess]:
        """The brokers that are not the controller."""
        return [each for each in self.nodes.values() if not each.node.metadata_driver.is_active]

    async def until(self, what: str, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait until the condition holds; `what` names it in the error."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"waited {timeout_s} s for {what}") from None


@contextlib.asynccontextmanager
async def in_process_cluster(
    folder: Path, count: int, **settings: object
) -> AsyncIterator[Cluster]:
    """Brokers that were started together, numbered from 1."""
    cluster = Cluster(folder, **settings)
    try:
        await asyncio.gather(*(cluster.start(node_id) for node_id in range(1, count + 1)))
        yield cluster
    finally:
        await asyncio.gather(*(each.owner.stop() for each in cluster.nodes.values()))


def batch_of(
    values: Iterable[bytes | None],
    *,
    timestamp: int = NOW_MS,
    codec: int = Codec.NONE,
    **header: Any,
) -> bytes:
    """One batch as a producer makes it: offsets from 0, timestamps ascending by one."""
    records = [Record(i, timestamp + i, b"k", value) for i, value in enumerate(values)]
    return build_batch(records, codec=codec, **header)


def values_of(records: Any) -> list[bytes | None]:
    """The values in a fetched run of batches."""
    return [record.value for record in records_of(records)]


def records_of(records: Any) -> list[Record]:
    """The records in a fetched run of batches."""
    return [
        record
        for position, header in iterate_headers(records)
        for record in read_records(records, position, header)
    ]


def produce_request(
    topic: str, batch: bytes | None, partition: int = 0, *, acks: int = -1, **fields: Any
) -> ProduceRequest:
    """A request with one batch."""
    data = PartitionProduceData(index=partition, records=batch)
    return build(
        ProduceRequest,
        acks=acks,
        timeout_ms=1000,
        topic_data=[{"name": topic, "partition_data": [data], **fields}],
    )


def fetch_request(
    topic: str,
    offset: int,
    partition: int = 0,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    partition_max_bytes: int = 1 << 20,
    topic_id: bytes = bytes(16),
    more: Sequence[FetchPartition] = (),
    partition_fields: dict[str, Any] | None = None,
    **fields: Any,
) -> FetchRequest:
    """A request for one partition of a topic, and for `more` partitions of that topic."""
    wanted = FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=partition_max_bytes,
        **(partition_fields or {}),
    )
    return build(
        FetchRequest,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        topics=[{"topic": topic, "topic_id": topic_id, "partitions": [wanted, *more]}],
        **fields,
    )
