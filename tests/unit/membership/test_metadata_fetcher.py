"""A broker that follows the controller, while its store hangs."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.membership.metadata_fetcher import MetadataFetcher
from broker.metadata.events import Event
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.messages import ReadMetadataRequest, ReadMetadataResponse
from tests.fakes.network import Respondent
from tests.loops import in_loop
from tests.requests import build
from tests.unit.controller.metadata_broker import Broker, stop


@in_loop
async def test_who_has_no_controller_and_a_store_that_hangs_finds_the_next_one_by_wire(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, lost = (Broker(memory_path, node_id=number) for number in (1, 2, 3))
    for broker in (new, old):
        await broker.driver.catch_up()
        assert await broker.start()
    await lost.driver.catch_up()
    assert lost.image.controller_id == 1
    await old.driver.stop()
    # It was deposed, and takes its place back.
    await new.driver.confirm()
    assert await new.start(dead=1)
    is_back, read_after = threading.Event(), lost.log.read_after

    def hang(version: int) -> list[tuple[int, list[Event]]]:
        is_back.wait()
        return read_after(version)

    monkeypatch.setattr(lost.log, "read_after", hang)
    running = asyncio.ensure_future(following(lost, new, node_id=3).run())
    try:
        async with asyncio.timeout(60):
            while lost.image.controller_id != 2:
                await lost.driver.wait_for_change(1)
    finally:
        is_back.set()
        running.cancel()
        await asyncio.wait((running,))
        await stop(lost, new)


@pytest.mark.parametrize("place", ["claim", "look"])
@in_loop
async def test_who_hears_the_controller_follows_it_though_its_own_store_hangs(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It has claimed by mistake, or looks into the log, and does not hear what becomes of that."""
    old, late = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    assert await old.start()
    await late.driver.catch_up()
    begun, is_back = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        begun.set()
        is_back.wait()

    monkeypatch.setattr(late.log, "commit" if place == "claim" else "read_after", hang)
    doing = late.start() if place == "claim" else late.driver.catch_up()
    hanging = asyncio.ensure_future(doing)
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    await old.create("a")
    running = asyncio.ensure_future(following(late, old, node_id=2).run())
    try:
        async with asyncio.timeout(60):
            while "a" not in late.image.topics:
                await late.driver.wait_for_change(1)
        with pytest.raises(OSError, match="another broker has become the controller"):
            await hanging
        assert not late.driver.is_active and old.driver.is_active
    finally:
        is_back.set()
        running.cancel()
        await asyncio.wait((running,))
        await stop(late, old)


def following(broker: Broker, controller: Broker, *, node_id: int) -> MetadataFetcher:
    """How a broker follows this controller, which it finds by wire alone, and waits for no store."""

    def answer(request: ReadMetadataRequest, broker_id: int, *_: object) -> Any:
        """Of all others the controller alone answers."""
        if broker_id != controller.node_id:
            return PeerUnreachable("it is dead")
        image = controller.image
        entries = controller.driver.entries_after(request.after_version, 1 << 20)
        return build(
            ReadMetadataResponse,
            error_code=0,
            controller_id=image.controller_id,
            controller_epoch=image.controller_epoch,
            last_version=image.version,
            entries=[{"version": e.version, "events": e.encoded} for e in entries or ()],
        )

    candidacy: Any = SimpleNamespace(heard=lambda _: None, lost=lambda: None, has_lost_store=False)
    return MetadataFetcher(
        broker.driver,
        cast(Any, Respondent(answer)),
        candidacy,
        node_id=node_id,
        listener="PLAINTEXT",
        patience_ms=1,
    )
