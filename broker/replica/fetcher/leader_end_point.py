"""Shell: the leader as one fetcher sees it: the connection to its broker, and its requests besides Fetch."""

from __future__ import annotations

from typing import Any

from broker.replica.fetcher.context import FetcherContext
from broker.replica.fetcher.requests import offset_request
from broker.replica.follower.partition import FollowerPartition
from broker.transport.peer import PeerConnection, PeerUnreachable
from kafka_ds.protocol.errors import check_code


class LeaderEndPoint:
    """One broker that leads partitions which are followed here."""

    def __init__(self, broker_id: int, fetcher_id: int, context: FetcherContext) -> None:
        self.broker_id = broker_id
        self._client_id = f"broker-{context.node_id}-fetcher-{fetcher_id}"
        self._context = context
        self.connection: PeerConnection | None = None

    async def connect(self) -> PeerConnection:
        """Open a connection. Raises PeerUnreachable."""
        context, settings = self._context, self._context.settings
        address = context.address_of(self.broker_id)
        if address is None:
            raise PeerUnreachable(f"broker {self.broker_id} is not registered")
        self.connection = await PeerConnection.connect(
            context.network,
            *address,
            client_id=self._client_id,
            timeout_ms=settings.replica_socket_timeout_ms,
            receive_buffer_bytes=settings.replica_socket_receive_buffer_bytes,
        )
        return self.connection

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()

    async def send(self, request: Any) -> Any:
        """The response. Raises PeerUnreachable, also without a connection."""
        connection = self.connection
        if connection is None or not connection.is_open:
            raise PeerUnreachable(f"the connection to broker {self.broker_id} is lost")
        timeout_ms = self._context.settings.replica_socket_timeout_ms
        return await connection.send(request, timeout_ms=timeout_ms)

    async def fetch_offset(self, partition: FollowerPartition, timestamp: int) -> tuple[int, int]:
        """An end of the leader's log, and the leader epoch there. Raises KafkaError, PeerUnreachable."""
        response = await self.send(offset_request(partition, timestamp, self._context.node_id))
        found = response.topics[0].partitions[0]
        check_code(found.error_code)
        return found.offset, found.leader_epoch
