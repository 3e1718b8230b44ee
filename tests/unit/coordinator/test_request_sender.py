"""Questions of coordinators to other brokers: none is asked of a broker that is known not to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import pytest

from broker.coordinator.request_sender import RequestSender
from broker.metadata.events import FenceBroker
from kafka_ds.protocol.errors import ErrorCode
from tests.fakes.cluster import other_brokers
from tests.fakes.network import Respondent
from tests.loops import in_loop


class Question(NamedTuple):
    content: Hashable
    group: Hashable = "one at a time"


class Questions:
    def request(self, items: Sequence[Question]) -> Any:
        return list(items)

    def answers(self, items: Sequence[Question], response: Any) -> list[ErrorCode]:
        return [ErrorCode.NONE] * len(items)


def outbox_to(peers: Respondent) -> RequestSender[Question]:
    return RequestSender(other_brokers(peers), Questions())


@in_loop
async def test_those_who_wait_for_their_turn_hear_of_a_fenced_broker_at_once() -> None:
    peers = Respondent()
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
    peers = Respondent()
    sender = outbox_to(peers)

    async def asked(*, answers: bool) -> ErrorCode:
        asking = sender.send(2, Question("x"))
        await asyncio.sleep(0)
        if answers:
            peers.waiting[-1].set_result(None)
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
