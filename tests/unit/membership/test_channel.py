"""A broker's requests to the active controller, while controllers change."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.membership.channel import ControllerChannel
from tests.fakes.cluster import image_of, registration_of
from tests.fakes.network import Respondent
from tests.loops import in_loop, until


class ForwardingBrokers:
    """Two brokers of which the first one decides, and does not run; the second one answers."""

    is_active = False

    def __init__(self) -> None:
        self.peers = Respondent(self.answer)
        self.last_word = asyncio.get_running_loop().create_future()
        self.image = image_of(registration_of(1), registration_of(2))
        self.image.controller_id = self.image.controller_epoch = 1
        self._news = asyncio.Event()
        self.channel = ControllerChannel(
            cast(Any, self),
            cast(Any, self.peers),
            listener="PLAINTEXT",
            handle_locally=cast(Any, None),
        )

    async def wait_for_change(self, timeout_seconds: float) -> None:
        await asyncio.wait([asyncio.ensure_future(self._news.wait())], timeout=timeout_seconds)

    def answer(self, _: object, broker_id: int, *__: object) -> Any:
        return self.last_word if broker_id == 1 else SimpleNamespace(error_code=0, of=broker_id)

    def deposed(self) -> None:
        self.image.controller_id, self.image.controller_epoch = 2, 2
        self._news.set()


@pytest.mark.parametrize("answers", [False, True])
@in_loop
async def test_a_controller_that_does_not_run_is_waited_for_until_another_one_comes(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Producers would wait for their ids until the question is given up, though there is who could give them."""
    seconds = 60 if answers else 0.01
    monkeypatch.setattr("broker.membership.channel.LAST_WORD_SECONDS", seconds)
    around = ForwardingBrokers()
    asking = asyncio.ensure_future(around.channel.send(object(), timeout_ms=3_600_000))
    await until(lambda: around.peers.asked)
    around.deposed()
    if answers:
        # What it decided before is told all the same.
        await asyncio.sleep(0)
        around.last_word.set_result(SimpleNamespace(error_code=0, of=1))
    async with asyncio.timeout(120):
        assert (await asking).of == (1 if answers else 2)
