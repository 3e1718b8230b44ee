"""An operator who changes the cluster while it works: topics come and go, replicas move, leaders are elected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)
from kafka_ds.protocol.messages.replicas import (
    AlterReplicaLogDir,
    AlterReplicaLogDirTopic,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from kafka_ds.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, DeleteTopicState
from kafka_ds.protocol.types import NO_UUID
from tests.sim.clients import TROUBLE, Client, Partition

SIDE_TOPICS = 3
PREFERRED = 0


def topic_named(
    name: str,
    *,
    partitions: int,
    replication_factor: int,
    min_insync_replicas: int,
    configs: Mapping[str, str],
) -> CreatableTopic:
    """A topic for CreateTopics."""
    settings = {"min.insync.replicas": str(min_insync_replicas), **configs}
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
    )


class Operator(Client):
    """Asks for one change after the other; under faults a change may fail."""

    def __init__(
        self,
        *args: Any,
        partitions: list[Partition],
        brokers: list[int],
        replication_factor: int,
        min_insync_replicas: int,
        log: Callable[[str], None],
        configs: Mapping[str, str],
    ) -> None:
        """`configs` are settings of every topic that it creates."""
        super().__init__(*args)
        self._configs = configs
        self._partitions = partitions
        self._brokers_there = brokers
        self._replication_factor = replication_factor
        self._min_insync_replicas = min_insync_replicas
        self._log = log

    async def create(self, name: str, partitions: int) -> ErrorCode | None:
        """Create a topic. The result is None if the outcome is unknown."""
        topic = topic_named(
            name,
            partitions=partitions,
            replication_factor=self._replication_factor,
            min_insync_replicas=self._min_insync_replicas,
            configs=self._configs,
        )
        try:
            answer = await self.ask_any(CreateTopicsRequest(topics=[topic]), 7)
        except TROUBLE:
            return None
        return ErrorCode(answer.topics[0].error_code)

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Change something now and then until `is_over`."""
        while not is_over():
            await asyncio.sleep(self.random.random() * 2)
            action = self.random.choice((self._make, self._drop, self._move, self.prefer))
            try:
                said = await action()
            except TROUBLE as error:
                said = repr(error)
            self._log(f"operator: {action.__name__.strip('_')}: {said}")

    def _side(self) -> str:
        return f"side-{self.random.randrange(SIDE_TOPICS)}"

    async def _make(self) -> str:
        name = self._side()
        return f"{name} {await self.create(name, 2)!r}"

    async def _drop(self) -> str:
        name = self._side()
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name, topic_id=NO_UUID)], timeout_ms=5_000
        )
        answer = await self.ask_any(request, 6)
        return f"{name} {ErrorCode(answer.responses[0].error_code).name}"

    async def _move(self) -> str:
        topic, index = self.random.choice(self._partitions)
        replicas = self.random.sample(self._brokers_there, self._replication_factor)
        place = ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[place])], timeout_ms=5_000
        )
        answer = await self.ask_any(request, 0)
        return f"{topic}-{index} to {replicas} {ErrorCode(answer.error_code).name}"

    async def prefer(self) -> str:
        """Elect the preferred leader of a partition."""
        topic, index = self.random.choice(self._partitions)
        request = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[index])],
            timeout_ms=5_000,
        )
        answer = await self.ask_any(request, 2)
        return f"{topic}-{index} {ErrorCode(answer.error_code).name}"


class Mover(Client):
    """Moves replicas between the log directories of a broker (KIP-113), and may redirect a move that goes on."""

    def __init__(
        self,
        *args: Any,
        partitions: list[Partition],
        directories: list[str],
        log: Callable[[str], None],
    ) -> None:
        super().__init__(*args)
        self._partitions = partitions
        self._directories = directories
        self._log = log

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Move replicas now and then until `is_over`."""
        while not is_over():
            await asyncio.sleep(self.random.random() * 0.5)
            path = self.random.choice(self._directories)
            topic, index = self.random.choice(self._partitions)
            place = AlterReplicaLogDirTopic(name=topic, partitions=[index])
            request = AlterReplicaLogDirsRequest(
                dirs=[AlterReplicaLogDir(path=path, topics=[place])]
            )
            address = self.random.choice(self._bootstrap)
            try:
                answer = await self.ask(await self.connection(address), request, 2)
            except TROUBLE:
                continue
            code = ErrorCode(answer.results[0].partitions[0].error_code)
            self._log(f"{topic}-{index} of {address[0]} to {path}: {code.name}")
