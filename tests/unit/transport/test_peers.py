"""Connections to other brokers, kept by their numbers: who waits for one that is given up is told so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.transport.peer import PeerUnreachable
from broker.transport.peers import Peers
from kafka_ds.protocol.messages import MetadataRequest
from tests.loops import in_loop


class SilentNetwork:
    """Nobody answers, and nobody refuses."""

    async def connect(self, *_: object) -> Any:
        await asyncio.get_running_loop().create_future()


@in_loop
async def test_who_waits_for_a_broker_that_has_moved_is_told_and_not_cancelled() -> None:
    """A task that is cancelled ends without a word: what it had begun would wait for its answer for ever."""
    peers = Peers(SilentNetwork(), client_id="x")  # type: ignore[arg-type]

    def ask(host: str) -> asyncio.Future[Any]:
        return asyncio.ensure_future(
            peers.send(2, host, 9092, MetadataRequest(topics=None), timeout_ms=30_000)
        )

    at_the_old_place = [ask("old"), ask("old")]
    await asyncio.sleep(0)
    gone = at_the_old_place.pop()
    gone.cancel()
    at_the_new_one = ask("new")
    with pytest.raises(PeerUnreachable, match="old:9092"):
        await at_the_old_place[0]
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert not at_the_new_one.done()
    peers.close()
    with pytest.raises(PeerUnreachable, match="new:9092"):
        await at_the_new_one
