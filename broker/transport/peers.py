"""Shell: one connection to each other broker, made on demand and reused.

Concurrent callers wait for the same connection. A connection that is lost or leads to an old address is replaced at the
next request; callers waiting for the old one get PeerUnreachable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.transport.peer import PeerConnection, PeerUnreachable

if TYPE_CHECKING:
    from kafka_ds.process.seams import Network


class _PeerEntry(NamedTuple):
    host: str
    port: int
    connecting: asyncio.Task[PeerConnection]

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open or being made."""
        if not self.connecting.done():
            return True
        if self.connecting.cancelled() or self.connecting.exception() is not None:
            return False
        return self.connecting.result().is_open


class Peers:
    """The connections of one part of this broker; each part has its own, so that none waits for another's requests."""

    def __init__(self, network: Network, *, client_id: str) -> None:
        self._network = network
        self._client_id = client_id
        self._kept: dict[int, _PeerEntry] = {}

    async def send(
        self, broker_id: int, host: str, port: int, request: Any, *, timeout_ms: int
    ) -> Any:
        """The response of a broker; connecting and the request each have `timeout_ms`.

        Raises PeerUnreachable, and KafkaError UNSUPPORTED_VERSION, as `PeerConnection.send`.
        """
        kept = self._kept.get(broker_id)
        if kept is None or not kept.is_usable or (kept.host, kept.port) != (host, port):
            self.drop(broker_id)
            connecting = asyncio.get_running_loop().create_task(
                PeerConnection.connect(
                    self._network,
                    host,
                    port,
                    client_id=self._client_id,
                    timeout_ms=timeout_ms,
                )
            )
            kept = self._kept[broker_id] = _PeerEntry(host, port, connecting)
        if not kept.connecting.done():
            # A cancelled caller must not cancel the connection for others, nor a dropped connection its callers.
            await asyncio.wait([kept.connecting])
        if kept.connecting.cancelled():
            raise PeerUnreachable(f"{host}:{port} did not answer in time")
        return await kept.connecting.result().send(request, timeout_ms=timeout_ms)

    def drop(self, broker_id: int) -> None:
        """Close the connection to a broker, if there is one."""
        kept = self._kept.pop(broker_id, None)
        if kept is None:
            return
        if not kept.connecting.done():
            kept.connecting.cancel()
        elif not kept.connecting.cancelled() and kept.connecting.exception() is None:
            kept.connecting.result().close()

    def close(self) -> None:
        """Close all connections."""
        for broker_id in tuple(self._kept):
            self.drop(broker_id)
