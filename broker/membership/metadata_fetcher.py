"""Shell: keeps up with the metadata: by a long poll to the controller, or from the table if that does not answer.

The controller sends only durable records, the same as in the table, so even a deposed one sends nothing wrong. Each
answer is a sign of life (`heard`). A controller that knows less than this broker was deposed. A broker that reaches
neither a controller nor the table asks all other brokers; so does a controller that has lost the store. A hanging read
of the table is waited for no longer than a controller is, and does not delay what a controller sends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.membership.channel import endpoint_of
from broker.metadata.events import decode_events
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import ReadMetadataRequest, ReadMetadataResponse

if TYPE_CHECKING:
    from broker.controller.metadata_driver import MetadataDriver
    from broker.membership.candidacy import Candidacy
    from broker.metadata.events import Event
    from broker.transport.peers import Peers

_LOGGER = logging.getLogger(__name__)

POLL_MS = 500
POLL_BYTES_MAX = 4 << 20
# Decoding more takes milliseconds, which is a thread's work.
DECODED_HERE_BYTES_MAX = 16 << 10
# Between reads of the table while no controller answers.
TABLE_SECONDS = 0.25
IDLE_SECONDS = 1.0


class MetadataFetcher:
    """One broker's view of the metadata, kept current while another one decides."""

    def __init__(
        self,
        driver: MetadataDriver,
        peers: Peers,
        candidacy: Candidacy,
        *,
        node_id: int,
        listener: str,
        patience_ms: int,
    ) -> None:
        """`patience_ms`: how much longer than requested a controller may take."""
        self._driver = driver
        self._peers = peers
        self._node_id = node_id
        self._listener = listener
        self._patience_ms = patience_ms
        self._candidacy = candidacy
        self._said: str | None = None
        # A read of the table in flight.
        self._looking: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            if self._driver.is_active:
                if self._candidacy.has_lost_store:
                    await self._fetch_from_others()
                await self._driver.wait_for_change(IDLE_SECONDS)
                continue
            why = await self._poll()
            if why is None:
                self._said = None
                continue
            self._say(why)
            self._candidacy.lost()
            try:
                await self._look()
            except (OSError, ValueError) as error:
                _LOGGER.warning("%s cannot be read: %s", self._driver.folder, error)
                await self._fetch_from_others()
            await asyncio.sleep(TABLE_SECONDS)

    async def _poll(self) -> str | None:
        """Ask once, and apply the answer; returns why the table must be read, if it must."""
        image = self._driver.image
        controller_id = image.controller_id
        endpoint = endpoint_of(image, controller_id, self._listener)
        if endpoint is None or controller_id == self._node_id:
            return "there is no other controller"
        try:
            answer = await self._fetch(controller_id, endpoint, wait_ms=POLL_MS)
            if answer.error_code != ErrorCode.NONE:
                return f"controller {controller_id} answers {ErrorCode(answer.error_code).name}"
            self._candidacy.heard(answer.controller_epoch)
            await self._follow(await _decoded(answer))
        except (PeerUnreachable, KafkaError, ValueError) as error:
            return f"controller {controller_id}: {error}"
        return None

    async def _follow(self, entries: list[tuple[int, list[Event]]]) -> None:
        """Apply what the controller sends, if need be without waiting for a store that hangs."""
        if not entries:
            return
        following = asyncio.ensure_future(self._driver.follow(entries))
        await asyncio.wait((following,), timeout=self._patience_ms / 1_000)
        if not following.done() and self._driver.is_at_store:
            # A read of the table, or a claim, is pending; the claim is lost: it was decided on less than this.
            await self._driver.follow_instead(entries)
        await following

    async def _look(self) -> None:
        """Apply what the table holds; raises OSError, also if the store does not answer for long, and ValueError."""
        looking = self._looking
        if looking is None or looking.done():
            looking = self._looking = asyncio.ensure_future(self._driver.catch_up())
            # Perhaps nothing waits for it any more.
            looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait((looking,), timeout=self._patience_ms / 1_000)
        if not looking.done():
            raise TimeoutError("the previous read has not ended yet")
        looking.result()

    async def _fetch_from_others(self) -> None:
        """Apply what a newer controller than the known one sends, if there is one."""
        image = self._driver.image
        asked = [
            (broker_id, endpoint)
            for broker_id in image.brokers
            if broker_id not in (self._node_id, image.controller_id)
            and (endpoint := endpoint_of(image, broker_id, self._listener)) is not None
        ]
        for broker_id, endpoint in asked:
            try:
                answer = await self._fetch(broker_id, endpoint, wait_ms=0)
                if answer.error_code == ErrorCode.NONE and answer.entries:
                    await self._driver.follow_instead(await _decoded(answer))
                    return
            except (PeerUnreachable, KafkaError, ValueError) as error:
                _LOGGER.debug("broker %d did not name the controller: %s", broker_id, error)

    async def _fetch(
        self, broker_id: int, endpoint: tuple[str, int], *, wait_ms: int
    ) -> ReadMetadataResponse:
        image = self._driver.image
        request = ReadMetadataRequest(
            broker_id=self._node_id,
            controller_epoch=image.controller_epoch,
            after_version=image.version,
            max_wait_ms=wait_ms,
            max_bytes=POLL_BYTES_MAX,
        )
        answer: ReadMetadataResponse = await self._peers.send(
            broker_id, *endpoint, request, timeout_ms=wait_ms + self._patience_ms
        )
        return answer

    def _say(self, why: str) -> None:
        """Logged once for each reason: it is asked again several times a second."""
        if why != self._said:
            self._said = why
            _LOGGER.info("reading metadata from the table %s: %s", self._driver.folder, why)


async def _decoded(answer: ReadMetadataResponse) -> list[tuple[int, list[Event]]]:
    if sum(len(each.events) for each in answer.entries) <= DECODED_HERE_BYTES_MAX:
        return _decoded_now(answer)
    return await asyncio.to_thread(_decoded_now, answer)


def _decoded_now(answer: ReadMetadataResponse) -> list[tuple[int, list[Event]]]:
    return [(each.version, decode_events(each.events)) for each in answer.entries]
