"""Standing for controller over a folder: what may happen while the lease is written or the claim is on its way."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.membership.lease import LEASE_PATH, Lease, decode_lease
from broker.metadata.events import SupportedFeature
from broker.metadata.log import Commit
from broker.transport.peer import PeerLate
from kafka_ds.delta.commit import Attempt, FateUnknown, NotCommitted
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.messages import ControllerLivenessResponse
from tests.fakes.store import ALWAYS, FolderStore
from tests.loops import in_loop, until
from tests.unit.membership.standing import Standing


def lease(folder: Path) -> Lease:
    found = decode_lease((folder / LEASE_PATH).read_bytes())
    assert found is not None
    return found


async def seen(event: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, event.wait)


@in_loop
async def test_a_controller_that_came_while_the_lease_was_written_is_left_alone(
    memory_path: Path,
) -> None:
    first = Standing(memory_path, 1)
    await first.begin()
    await first.broker.driver.step_down()
    await first.candidacy.release()
    slow = FolderStore(memory_path)
    lease_held = slow.hold(calls="put_durable", path="*", times=ALWAYS)
    late = Standing(memory_path, 3, store=slow)
    claiming = asyncio.ensure_future(late.begin())
    await seen(lease_held.reached)
    second = Standing(memory_path, 2)
    await second.begin()
    assert second.broker.driver.is_active
    # The late one hears of it by wire, as it follows all the time.
    await late.broker.driver.catch_up()
    lease_held.goes_on.set()
    await claiming
    assert not late.broker.driver.is_active
    assert await second.broker.driver.confirm()
    for each in (first, second, late):
        await each.stop()


@pytest.mark.parametrize("pauses", [1, 3, 99])
@in_loop
async def test_who_does_not_answer_at_once_may_live_in_this_brokers_place(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: int
) -> None:
    first = Standing(memory_path, 1)
    await first.begin()
    twin, asked = Standing(memory_path, 1), 0

    async def late(*_: object) -> ControllerLivenessResponse:
        nonlocal asked
        asked += 1
        twin.clock.ms += 1_000
        if asked <= pauses:
            raise PeerLate("it does not run for a second")
        return ControllerLivenessResponse(last_heard_ms=0)

    monkeypatch.setattr(twin.candidacy, "controller_liveness", late)
    if pauses < 9:
        with pytest.raises(ConfigError, match="by the active controller at here:9091"):
            await twin.candidacy.begin("there", 1)
        assert not twin.broker.driver.is_active
    else:
        # A session's silence, as with any broker.
        await twin.candidacy.begin("there", 1)
        assert asked == 9 and twin.broker.driver.is_active
    for each in (first, twin):
        await each.stop()


@pytest.mark.parametrize("left", ["another's", "none"])
@in_loop
async def test_a_living_controller_is_found_where_its_lease_is_not(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Who claims writes a lease first: that of a claim that came to nothing may lie over the one of who decides."""
    first = Standing(memory_path, 1)
    await first.begin()
    if left == "none":
        LocalStore(str(memory_path)).delete(LEASE_PATH)
    else:
        lost = replace(lease(memory_path), controller_id=2, sequence=1, port=9092)
        (memory_path / LEASE_PATH).write_bytes(lost.encode())
    twin, asked = Standing(memory_path, 1), []

    async def answer(*place: object) -> ControllerLivenessResponse:
        asked.append(place)
        return ControllerLivenessResponse(last_heard_ms=0)

    monkeypatch.setattr(twin.candidacy, "controller_liveness", answer)
    with pytest.raises(ConfigError, match="by the active controller at here:9091"):
        await twin.candidacy.begin("there", 1)
    assert asked == [("here", 9091, 1, 1)]
    assert not twin.broker.driver.is_active
    # At its own address there is nobody but itself: a restart.
    again = Standing(memory_path, 1)
    await again.begin()
    assert again.broker.driver.is_active
    for each in (first, twin, again):
        await each.stop()


@in_loop
async def test_who_cannot_work_as_the_cluster_does_is_told_so_before_it_decides(
    memory_path: Path,
) -> None:
    """An older release at the disks of its successor: nobody else is there to refuse it."""
    old = SupportedFeature(name="transaction.version", lowest=0, highest=1)
    standing = Standing(memory_path, 1, features=(old,))
    with pytest.raises(ConfigError, match="does not work at the cluster's feature levels"):
        await standing.begin()
    assert standing.broker.image.controller_epoch == 0
    await standing.stop()


@in_loop
async def test_a_lease_that_cannot_be_released_keeps_nobody_from_stopping(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.membership.candidacy.RELEASE_SECONDS_MAX", 0.01)
    store = FolderStore(memory_path)
    standing = Standing(memory_path, 1, store=store)
    await standing.begin()
    held = store.hold(calls="put_durable", path="*", times=ALWAYS)
    async with asyncio.timeout(60):
        await standing.candidacy.release()
    assert not lease(memory_path).released
    held.goes_on.set()
    await standing.stop()


@in_loop
async def test_the_sequence_of_leases_begins_anew_with_each_epoch(memory_path: Path) -> None:
    standing = Standing(memory_path, 1)
    await standing.begin()
    orders = []
    for epoch in (1, 1, 2, 2):
        await standing.candidacy.write_lease(epoch)
        orders.append((epoch, lease(memory_path).sequence))
    assert orders == [(1, 2), (1, 3), (2, 1), (2, 2)]
    await standing.stop()


@in_loop
async def test_who_stops_while_it_claims_leaves_nobody_waiting(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = Standing(memory_path, 1)
    log, is_committing, goes_on = standing.broker.log, threading.Event(), threading.Event()
    commit = log.commit

    def slowly(begun: Commit) -> int | None:
        is_committing.set()
        goes_on.wait()
        return commit(begun)

    monkeypatch.setattr(log, "commit", slowly)
    claiming = asyncio.ensure_future(standing.begin())
    await seen(is_committing)
    claiming.cancel()
    await asyncio.wait([claiming])
    stepping_down = asyncio.ensure_future(standing.broker.driver.step_down())
    await asyncio.sleep(0)
    goes_on.set()
    await stepping_down
    await standing.candidacy.release()
    # The claim is in the log, and nobody is behind it: whoever reads this claims at once.
    assert standing.broker.image.controller_id == 1
    assert not standing.broker.driver.is_active
    assert json.loads((memory_path / LEASE_PATH).read_bytes())["released"]
    next_one = Standing(memory_path, 2)
    await next_one.begin()
    assert next_one.broker.driver.is_active
    await standing.stop()
    await next_one.stop()


@pytest.mark.parametrize("what", ["fails", "may have failed", "hangs"])
@in_loop
async def test_a_controller_whose_commits_fail_lets_its_lease_stand_still(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It may write the lease, and read the log, but not write there."""
    monkeypatch.setattr("broker.controller.metadata_driver.FATE_RETRY_SECONDS", 0.001)
    first, is_back = Standing(memory_path, 1), threading.Event()
    await first.begin()
    driver, candidacy, log = first.broker.driver, first.candidacy, first.broker.log
    commit = log.delta_log.commit

    def refuse(attempt: Attempt, **more: Any) -> int:
        if what == "hangs":
            is_back.wait()
            return commit(attempt, **more)
        kind = NotCommitted if what == "fails" else FateUnknown
        raise kind("Access Denied", attempt)

    async def try_again() -> None:
        failures = log.failures
        if what == "fails":
            with pytest.raises(KafkaError):
                await first.broker.create("t")
        await until(lambda: driver.is_at_store if what == "hangs" else log.failures > failures)

    async def sequences(*, is_tried: bool) -> list[int]:
        """Those of its lease in the next 20 s."""
        found = []
        for _ in range(10):
            if is_tried:
                await try_again()
            first.clock.ms += 2_000
            await candidacy.hold()
            found.append(lease(memory_path).sequence)
        return found

    before = lease(memory_path).sequence
    with monkeypatch.context() as refusing:
        refusing.setattr(log.delta_log, "commit", refuse)
        if what == "fails":  # Once is no reason.
            await try_again()
            assert await sequences(is_tried=False) == [before + each for each in range(1, 11)]
            before += 10
        creating = None if what == "fails" else asyncio.ensure_future(first.broker.create("t"))
        found = await sequences(is_tried=True)
        assert found == [before + each for each in (1, 2, 3, 4, 5, 5, 5, 5, 5, 5)]
        assert candidacy.has_lost_store and driver.is_active
    is_back.set()
    await (creating or first.broker.create("t"))
    assert await sequences(is_tried=False) == [before + 5 + each for each in range(1, 11)]
    assert not candidacy.has_lost_store
    await first.stop()
