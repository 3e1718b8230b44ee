"""Shell: gives out producer ids from blocks that this broker owns durably (KIP-730).

An id is given out once in the life of a cluster, whatever crashes. A block is durable before its first id is given, and
the rest of it is lost at a stop. The next block is requested while a tenth of this one is left, so that only the very
first caller waits for the disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kafka_ds.protocol.errors import KafkaError

if TYPE_CHECKING:
    from broker.membership.requests import ControllerRequests

_LOGGER = logging.getLogger(__name__)
PREFETCH_SHARE = 10


class ProducerIds:
    """The producer ids of one broker."""

    def __init__(self, controller: ControllerRequests) -> None:
        self._controller = controller
        self._block = range(0)
        self._next_block = range(0)
        self._fetching: asyncio.Task[None] | None = None
        self._low = 0

    def claim_next(self) -> int | None:
        """An id, if one is at hand."""
        if not self._block:
            self._block, self._next_block = self._next_block, range(0)
            if not self._block:
                return None
        producer_id = self._block[0]
        self._block = self._block[1:]
        if len(self._block) <= self._low and not self._next_block:
            self._fetch_soon()
        return producer_id

    async def next(self) -> int:
        """An id, waiting for a block if need be; raises KafkaError if none can be had."""
        while (producer_id := self.claim_next()) is None:
            await asyncio.shield(self._fetch_soon())
        return producer_id

    def _fetch_soon(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    async def _fetch(self) -> None:
        self._next_block = await self._controller.allocate_producer_ids()
        self._low = len(self._next_block) // PREFETCH_SHARE

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and isinstance(task.exception(), KafkaError):
            _LOGGER.warning(
                "Failed to allocate a block of producer ids, retrying: %s", task.exception()
            )
