"""Shell: requests to the active controller, whichever broker that is now.

- The caller gets an answer of the active controller, or an error when the time is over. NOT_CONTROLLER, an unreachable
  controller and a missing one are retried, as Kafka's brokers do. So a request may reach the controller twice: it must
  tolerate that (by an epoch or an id), or be sent without retries.
- When another controller comes, the one before has a moment to answer: a frozen one never reports that it was deposed.
- A broker that is the controller itself uses the same handler, without a socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.controller.metadata_driver import MetadataDriver
    from broker.metadata.image import MetadataImage
    from broker.transport.peers import Peers

_LOGGER = logging.getLogger(__name__)

BACKOFF_SECONDS_MIN = 0.02
BACKOFF_SECONDS_MAX = 1.0
# How long a deposed controller may take to answer earlier requests.
LAST_WORD_SECONDS = 1.0
LOOK_SECONDS = 5.0

HandleLocally = Callable[[Any], Awaitable[Any]]


def endpoint_of(image: MetadataImage, broker_id: int, listener: str) -> tuple[str, int] | None:
    """The address of a broker for other brokers."""
    broker = image.brokers.get(broker_id)
    endpoint = broker.endpoint(listener) if broker is not None else None
    return (endpoint.host, endpoint.port) if endpoint is not None else None


class ControllerChannel:
    """Asks the active controller."""

    def __init__(
        self, driver: MetadataDriver, peers: Peers, *, listener: str, handle_locally: HandleLocally
    ) -> None:
        """`listener`: that of inter.broker.listener.name; `handle_locally` serves a request at this broker."""
        self._driver = driver
        self._peers = peers
        self._listener = listener
        self._handle_locally = handle_locally

    async def send(self, request: Any, *, timeout_ms: int) -> Any:
        """The answer of the active controller, with any error code except NOT_CONTROLLER.

        Raises KafkaError: REQUEST_TIMED_OUT if no controller has answered by then; what a handler raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1_000
        pause_seconds = BACKOFF_SECONDS_MIN
        while True:
            left_ms = max(1, int((deadline - loop.time()) * 1_000))
            controller = self._controller()
            answer, why = await self._send_once(request, left_ms)
            if answer is not None:
                return answer
            if loop.time() + pause_seconds >= deadline:
                message = f"no controller answered within {timeout_ms} ms: {why}"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message)
            _LOGGER.debug("asking the controller again: %s", why)
            await self._pause(controller, pause_seconds)
            pause_seconds = min(pause_seconds * 2, BACKOFF_SECONDS_MAX)

    async def _send_once(self, request: Any, timeout_ms: int) -> tuple[Any, str]:
        """An answer that counts, or None and the reason."""
        driver = self._driver
        controller_id = driver.image.controller_id
        try:
            if driver.is_active:
                async with asyncio.timeout(timeout_ms / 1_000):
                    answer = await self._handle_locally(request)
            else:
                endpoint = endpoint_of(driver.image, controller_id, self._listener)
                if endpoint is None:
                    return None, "there is none"
                answer = await self._while_it_decides(
                    self._peers.send(controller_id, *endpoint, request, timeout_ms=timeout_ms)
                )
                if answer is None:
                    return None, f"broker {controller_id} is not the controller any more"
        except TimeoutError:
            return None, "this broker, the controller, is not done"
        except PeerUnreachable as error:
            return None, str(error)
        except KafkaError as error:
            if error.code != ErrorCode.NOT_CONTROLLER:
                raise
            return None, "this broker is not the controller any more"
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            return None, f"broker {controller_id} is not the controller"
        return answer, ""

    async def _while_it_decides(self, request: Coroutine[Any, Any, Any]) -> Any:
        """The controller's answer; None if another one came, and this one has not answered since."""
        before = self._controller()
        answering = asyncio.get_running_loop().create_task(request)
        try:
            while self._controller() == before and not answering.done():
                changing = asyncio.get_running_loop().create_task(
                    self._driver.wait_for_change(LOOK_SECONDS)
                )
                await asyncio.wait((answering, changing), return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
            await asyncio.wait((answering,), timeout=LAST_WORD_SECONDS)
            return answering.result() if answering.done() else None
        finally:
            answering.cancel()

    def _controller(self) -> tuple[int, int, bool]:
        image = self._driver.image
        return image.controller_id, image.controller_epoch, self._driver.is_active

    async def _pause(self, before: tuple[int, int, bool], seconds: float) -> None:
        """Wait, but not once another controller is known."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (left := deadline - loop.time()) > 0 and self._controller() == before:
            await self._driver.wait_for_change(left)
