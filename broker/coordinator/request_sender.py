"""Shell: requests of coordinators to other brokers: one queue per broker, sent in batches.

- One request is in flight to a broker at a time; what comes meanwhile goes with the next one, in order.
- Each question gets an answer in any case, as an ErrorCode: NETWORK_EXCEPTION for a broker that cannot be reached, is
  fenced or unknown. Nothing is retried here: the caller knows whether it still needs the answer, and from whom.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from broker.membership.channel import endpoint_of
from broker.membership.other_brokers import OtherBrokers
from broker.metadata.events import BrokerUnregistered, Event, FenceBroker, RegisterBroker
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

# How much is asked in one request, and how much may wait for it.
ITEMS_AT_ONCE = 1_000
QUEUED_MAX = 100_000


class InterBrokerQuestion(Protocol):
    """A question to another broker."""

    @property
    def group(self) -> Hashable:
        """What one request can name once only."""
        ...

    @property
    def content(self) -> Hashable:
        """The question's content; questions with the same content go together."""
        ...


T = TypeVar("T", bound=InterBrokerQuestion)
Sent = TypeVar("Sent", bound=InterBrokerQuestion, contravariant=True)


class RequestBuilder(Protocol[Sent]):
    """How questions become a request and its response their answers."""

    def request(self, items: Sequence[Sent]) -> Any:
        """One request for all of these questions."""

    def answers(self, items: Sequence[Sent], response: Any) -> Iterable[ErrorCode]:
        """The response's error codes."""


class _Queued(NamedTuple, Generic[T]):
    item: T
    answer: asyncio.Future[ErrorCode]


class RequestSender(Generic[T]):
    """Questions of one kind to all other brokers."""

    def __init__(self, others: OtherBrokers, questions: RequestBuilder[T]) -> None:
        self._others = others
        self._questions = questions
        self._peers = others.new_peers()
        self._queues: dict[int, deque[_Queued[T]]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        # Brokers that could not be reached, which is logged once: callers ask again many times.
        self._away: set[int] = set()

    def __len__(self) -> int:
        """How many questions wait for their turn."""
        return sum(map(len, self._queues.values()))

    def send(self, broker_id: int, item: T) -> asyncio.Future[ErrorCode]:
        """Ask a broker; returns its answer. If the caller is cancelled the request is sent all the same."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ErrorCode] = loop.create_future()
        queue = self._queues.setdefault(broker_id, deque())
        if len(queue) >= QUEUED_MAX:
            answer.set_result(ErrorCode.NETWORK_EXCEPTION)
            return answer
        queue.append(_Queued(item, answer))
        if broker_id not in self._sending:
            task = loop.create_task(self._send_all(broker_id, queue), name=f"send {broker_id}")
            self._sending[broker_id] = task
        return answer

    def apply(self, events: Iterable[Event]) -> None:
        """Stop waiting for brokers that were fenced, have gone or were replaced."""
        for event in events:
            if isinstance(event, FenceBroker | BrokerUnregistered | RegisterBroker):
                queue = self._queues.get(event.broker_id, deque())
                _give_up(queue)
                queue.clear()
                self._peers.drop(event.broker_id)

    def stop(self) -> None:
        """Send nothing more."""
        for task in tuple(self._sending.values()):
            task.cancel()
        self._peers.close()

    async def _send_all(self, broker_id: int, queue: deque[_Queued[T]]) -> None:
        under_way: list[_Queued[T]] = []
        try:
            while queue:
                under_way = _batch(queue)
                codes = await self._send(broker_id, [each.item for each in under_way])
                for each, code in zip(under_way, codes, strict=True):
                    if not each.answer.done():
                        each.answer.set_result(code)
        finally:
            del self._sending[broker_id], self._queues[broker_id]
            _give_up((*under_way, *queue))

    async def _send(self, broker_id: int, items: list[T]) -> list[ErrorCode]:
        others = self._others
        endpoint = endpoint_of(others.image, broker_id, others.listener)
        try:
            if endpoint is None:
                raise PeerUnreachable("its address is not known")
            request = self._questions.request(items)
            response = await self._peers.send(
                broker_id, *endpoint, request, timeout_ms=others.timeout_ms
            )
        except (PeerUnreachable, KafkaError) as error:
            if broker_id not in self._away:
                _LOGGER.warning("cannot reach broker %d: %s", broker_id, error)
            self._away.add(broker_id)
            return [ErrorCode.NETWORK_EXCEPTION] * len(items)
        self._away.discard(broker_id)
        return list(self._questions.answers(items, response))


def _give_up(questions: Iterable[_Queued[T]]) -> None:
    for left in questions:
        if not left.answer.done():
            left.answer.set_result(ErrorCode.NETWORK_EXCEPTION)


def _batch(queue: deque[_Queued[T]]) -> list[_Queued[T]]:
    """What goes with the next request: in order, and of each group one content only."""
    batch: list[_Queued[T]] = []
    contents: dict[Hashable, Hashable] = {}
    while queue and len(batch) < ITEMS_AT_ONCE:
        item = queue[0].item
        if contents.setdefault(item.group, item.content) != item.content:
            break
        batch.append(queue.popleft())
    return batch


def found_in(
    codes: Mapping[Hashable, int], wanted: Iterable[Hashable], *, otherwise: int
) -> Iterable[ErrorCode]:
    """The error codes of the requested items, if the response has them."""
    return (ErrorCode(codes.get(each, otherwise)) for each in wanted)
