"""Questions of coordinators to other brokers: none is asked of a broker that is known not to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from broker.coordinator.request_sender import RequestSender
from broker.metadata.events import FenceBroker
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.errors import ErrorCode
from tests.loops import in_loop


class Question(NamedTuple):
    content: Hashable
    group: Hashable = "one at a time"


class Questions:
    def request(self, items: Sequence[Question]) -> Any:
        return list(items)

    def answers(self, items: Sequence[Question], response: Any) -> list[ErrorCode]:
        return [ErrorCode.NONE] * len(items)


class Peers:
    """A broker that does not answer; who waits for it is told when it is dropped."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._waiting: list[asyncio.Future[Any]] = []

    async def send(self, broker_id: int, host: str, port: int, request: Any, **_: object) -> Any:
        self.asked.append(request)
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return await waiting

    def answer(self) -> None:
        self._waiting.pop().set_result(None)

    def drop(self, broker_id: int) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(PeerUnreachable("dropped"))
        self._waiting.clear()

    def close(self) -> None:
        self.drop(2)


def outbox_to(peers: Peers) -> RequestSender[Question]:
    endpoint = SimpleNamespace(host="there", port=9092)
    broker = SimpleNamespace(endpoint=lambda listener: endpoint)
    others: Any = SimpleNamespace(
        image=SimpleNamespace(brokers={2: broker}),
        listener="PLAINTEXT",
        new_peers=lambda: peers,
        timeout_ms=30_000,
    )
    return RequestSender(others, Questions())


@in_loop
async def test_those_who_wait_for_their_turn_hear_of_a_fenced_broker_at_once() -> None:
    peers = Peers()
    sender = outbox_to(peers)
    first, second = sender.send(2, Question("first")), sender.send(2, Question("second"))
    await asyncio.sleep(0)
    assert peers.asked == [[Question("first")]]
    sender.apply([FenceBroker(broker_id=2, broker_epoch=1)])
    assert await first is await second is ErrorCode.NETWORK_EXCEPTION
    assert len(peers.asked) == 1 and not len(sender)
    # It is asked again where somebody thinks that it is back.
    third = sender.send(2, Question("third"))
    await asyncio.sleep(0)
    assert peers.asked[1:] == [[Question("third")]]
    sender.stop()
    assert await third is ErrorCode.NETWORK_EXCEPTION


@in_loop
async def test_a_broker_that_is_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Markers are tried ten times a second."""
    peers = Peers()
    sender = outbox_to(peers)

    async def asked(*, answers: bool) -> ErrorCode:
        asking = sender.send(2, Question("x"))
        await asyncio.sleep(0)
        if answers:
            peers.answer()
        else:
            peers.drop(2)
        return await asking

    for _ in range(3):
        assert await asked(answers=False) is ErrorCode.NETWORK_EXCEPTION
    assert len(caplog.records) == 1
    assert await asked(answers=True) is ErrorCode.NONE
    assert await asked(answers=False) is ErrorCode.NETWORK_EXCEPTION
    assert len(caplog.records) == 2
    sender.stop()
