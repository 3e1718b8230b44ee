"""Shell: asks share coordinators to keep the state of share partitions: one request to each of their brokers.

- A share partition is coordinated by the leader of its key's partition in `__share_group_state`, this broker or another
  one. Different partitions of one call go to different brokers at the same time.
- Every partition gets a result. A coordinator that is not there (yet) is asked again for request.timeout.ms; a write
  may therefore arrive twice, which its epochs and offsets tolerate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from broker.coordinator.runtime import CoordinatorRuntime
from broker.coordinator.share_partition_key import SharePartitionKey
from broker.membership.channel import endpoint_of
from broker.membership.other_brokers import OtherBrokers
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from kafka_ds.protocol.messages.share_state import (
    DeleteStateData,
    DeleteStatePartition,
    InitializeStateData,
    InitializeStatePartition,
    ReadStateData,
    ReadStatePartition,
    ReadStatePartitionResult,
    ReadStateSummaryPartitionResult,
    StatePartitionResult,
    WriteStateData,
    WriteStatePartition,
)
from kafka_ds.protocol.refusal import refusal
from kafka_ds.protocol.topic_partition import PartitionId

BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0

# The coordinator is, or will be, another one.
_RETRIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)

Handle: TypeAlias = Callable[[Any], Awaitable[Any]]


class _Call(NamedTuple):
    """The classes of a request, of a topic in it, and of a partition's result."""

    request: Any
    topic: Any
    result: Any


_INITIALIZE = _Call(InitializeShareGroupStateRequest, InitializeStateData, StatePartitionResult)
_READ = _Call(ReadShareGroupStateRequest, ReadStateData, ReadStatePartitionResult)
_WRITE = _Call(WriteShareGroupStateRequest, WriteStateData, StatePartitionResult)
_DELETE = _Call(DeleteShareGroupStateRequest, DeleteStateData, StatePartitionResult)
_READ_SUMMARY = _Call(
    ReadShareGroupStateSummaryRequest, ReadStateData, ReadStateSummaryPartitionResult
)


class SharePersister:
    """The state of share partitions, wherever it is kept. Results have Kafka's error codes; nothing is raised."""

    def __init__(
        self, runtime: CoordinatorRuntime[Any], others: OtherBrokers, handle_locally: Handle
    ) -> None:
        """`runtime` is the share coordinator's; `handle_locally` serves a request at this broker."""
        self._runtime = runtime
        self._others = others
        self._handle_locally = handle_locally
        self._peers = others.new_peers()

    async def initialize_state(
        self, group_id: str, partitions: Mapping[PartitionId, InitializeStatePartition]
    ) -> dict[PartitionId, StatePartitionResult]:
        """Begin the state of share partitions with a state epoch and a start offset."""
        return await self._send(_INITIALIZE, group_id, partitions)

    async def read_state(
        self, group_id: str, partitions: Mapping[PartitionId, ReadStatePartition]
    ) -> dict[PartitionId, ReadStatePartitionResult]:
        """The whole state, for the partitions' leaders of these epochs."""
        return await self._send(_READ, group_id, partitions)

    async def write_state(
        self, group_id: str, partitions: Mapping[PartitionId, WriteStatePartition]
    ) -> dict[PartitionId, StatePartitionResult]:
        """Write what has changed."""
        return await self._send(_WRITE, group_id, partitions)

    async def delete_state(
        self, group_id: str, partitions: Mapping[PartitionId, DeleteStatePartition]
    ) -> dict[PartitionId, StatePartitionResult]:
        """Forget share partitions."""
        return await self._send(_DELETE, group_id, partitions)

    async def read_state_summary(
        self, group_id: str, partitions: Mapping[PartitionId, ReadStatePartition]
    ) -> dict[PartitionId, ReadStateSummaryPartitionResult]:
        """Epochs and start offsets; a leader epoch of -1 asks for nobody in particular."""
        return await self._send(_READ_SUMMARY, group_id, partitions)

    def stop(self) -> None:
        """Send nothing more."""
        self._peers.close()

    async def _send(
        self, call: _Call, group_id: str, partitions: Mapping[PartitionId, Any]
    ) -> dict[PartitionId, Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._others.timeout_ms / 1_000
        pause_seconds = BACKOFF_SECONDS_MIN
        results: dict[PartitionId, Any] = {}
        left = dict(partitions)
        while left:
            results |= await self._send_once(call, group_id, left)
            left = {key: left[key] for key in left if results[key].error_code in _RETRIED}
            if loop.time() + pause_seconds >= deadline:
                break
            if left:
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, BACKOFF_SECONDS_MAX)
        return results

    async def _send_once(
        self, call: _Call, group_id: str, partitions: Mapping[PartitionId, Any]
    ) -> dict[PartitionId, Any]:
        try:
            await self._runtime.ensure()
        except KafkaError as error:
            return _refused(call, partitions, error.code)
        by_broker: dict[int, dict[PartitionId, Any]] = {}
        for key, item in partitions.items():
            coordinator = self._runtime.leader_of(str(SharePartitionKey(group_id, *key)))
            by_broker.setdefault(coordinator, {})[key] = item
        answers = await asyncio.gather(
            *(self._ask(broker, call, group_id, items) for broker, items in by_broker.items())
        )
        return {key: result for answer in answers for key, result in answer.items()}

    async def _ask(
        self, broker_id: int, call: _Call, group_id: str, partitions: Mapping[PartitionId, Any]
    ) -> dict[PartitionId, Any]:
        """The results of one broker; those that it left out are UNKNOWN_SERVER_ERROR."""
        topics: dict[bytes, list[Any]] = {}
        for (topic_id, _), item in partitions.items():
            topics.setdefault(topic_id, []).append(item)
        request = call.request(
            group_id=group_id,
            topics=[call.topic(topic_id=each, partitions=items) for each, items in topics.items()],
        )
        others = self._others
        try:
            if broker_id == others.node_id:
                response = await self._handle_locally(request)
            else:
                endpoint = endpoint_of(others.image, broker_id, others.listener)
                if endpoint is None:
                    return _refused(call, partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                response = await self._peers.send(
                    broker_id, *endpoint, request, timeout_ms=others.timeout_ms
                )
        except PeerUnreachable:
            return _refused(call, partitions, ErrorCode.NETWORK_EXCEPTION)
        except KafkaError as error:
            return _refused(call, partitions, error.code)
        found = {
            (topic.topic_id, each.partition): each
            for topic in response.results
            for each in topic.partitions
        }
        missing = {key: item for key, item in partitions.items() if key not in found}
        return found | _refused(call, missing, ErrorCode.UNKNOWN_SERVER_ERROR)


def _refused(
    call: _Call, partitions: Mapping[PartitionId, Any], code: ErrorCode
) -> dict[PartitionId, Any]:
    return {key: refusal(call.result, item, code) for key, item in partitions.items()}
