"""Work on the metadata that is truncated: askers that go away, errors that nobody foresaw."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.metadata.events import Event, decode_events
from broker.metadata.log import Commit
from kafka_ds.delta.actions import CorruptLog
from kafka_ds.delta.commit import Attempt, Change, FateUnknown
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.loops import in_loop, until
from tests.unit.controller.metadata_broker import Broker, events_of, stop, versions


async def deposed(folder: Path) -> tuple[Broker, Broker]:
    """A controller that does not know yet that another one has its place, and that other one."""
    old, new = Broker(folder, node_id=1), Broker(folder, node_id=2)
    assert await old.start()
    await old.create("a")
    await new.driver.catch_up()
    assert await new.start(dead=1)
    await new.create("b")
    return old, new


def kinds(folder: Path) -> list[str]:
    return [event["type"] for path in versions(folder) for event in events_of(path)]


@in_loop
async def test_who_has_read_of_its_successor_and_forgot_does_not_decide(memory_path: Path) -> None:
    old, new = await deposed(memory_path)
    before = kinds(memory_path)
    # As where the asker's connection goes away while the thread reads.
    old.log.read_after(old.image.version)
    with pytest.raises(KafkaError) as refused:
        await old.create("rogue")
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    assert kinds(memory_path) == before
    await new.create("c")
    assert sorted(new.image.topics) == ["a", "b", "c"]
    await stop(old, new)


@pytest.mark.parametrize("turns", range(4))
@in_loop
async def test_a_look_into_the_log_is_looked_to_the_end(memory_path: Path, turns: int) -> None:
    old, new = await deposed(memory_path)
    looking = asyncio.ensure_future(old.driver.confirm())
    for _ in range(turns):
        await asyncio.sleep(0)
    looking.cancel()
    await asyncio.wait([looking])
    with pytest.raises(KafkaError) as refused:
        await old.create("rogue")
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    await old.driver.catch_up()
    assert old.image.controller_id == 2
    assert sorted(old.image.topics) == ["a", "b"]
    await stop(old, new)


@in_loop
async def test_what_becomes_true_takes_all_its_effect(memory_path: Path) -> None:
    old, new = await deposed(memory_path)
    applied: list[Event] = []
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def apply(events: Sequence[Event]) -> None:
        begun.set()
        await goes_on.wait()
        applied.extend(events)

    await old.publish_to(apply)
    looking = asyncio.ensure_future(old.driver.confirm())
    await begun.wait()
    looking.cancel()
    await asyncio.wait([looking])
    goes_on.set()
    await old.driver.catch_up()
    # A claim and a topic: all of both, and in their order.
    told = [type(event).__name__ for event in applied]
    assert told[0] == "ControllerChange" and told[-1] == "PartitionChanged"
    assert old.image.version == new.image.version
    await stop(old, new)


@pytest.mark.parametrize("place", ["commit", "on_commit"])
@in_loop
async def test_an_error_that_nobody_foresaw_ends_the_deciding_and_leaves_nobody_waiting(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    error = CorruptLog("version 2 is no JSON")
    failed: list[BaseException] = []

    def fail(*_: object) -> None:
        raise error

    def committed(version: int) -> None:
        if place == "on_commit" and version > started:
            raise error

    started = 1 << 62
    broker = Broker(memory_path, committed=committed, failed=failed.append)
    assert await broker.start()
    started = broker.image.version
    if place == "commit":
        monkeypatch.setattr(broker.log, "commit", fail)
    answers = await asyncio.gather(
        *(broker.create(f"t{i}") for i in range(3)), return_exceptions=True
    )
    assert failed == [error]
    assert not broker.driver.is_active
    lost = [answer for answer in answers if isinstance(answer, KafkaError)]
    assert all(answer.code is ErrorCode.UNKNOWN_SERVER_ERROR for answer in lost)
    # What was durable when it happened is answered as done, and nothing else is there.
    assert len(answers) - len(lost) == len(broker.image.topics) == 3 * (place == "on_commit")
    assert sorted(broker.driver.controller.image.topics) == sorted(broker.image.topics)
    assert broker.driver.pending == 0
    with pytest.raises(KafkaError) as refused:
        await broker.create("t9")
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    await stop(broker)


def entries_of(broker: Broker, after: int) -> list[tuple[int, Sequence[Event]]]:
    """What a controller sends of the log to one that knows it up to there."""
    entries = broker.driver.entries_after(after, 1 << 20)
    assert entries is not None
    return [(each.version, decode_events(each.encoded)) for each in entries]


@pytest.mark.parametrize("hangs", [False, True])
@in_loop
async def test_a_controller_without_its_store_follows_the_next_one_of_whom_it_hears_by_wire(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    old, new = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    assert await old.start()
    await old.create("a")
    await new.driver.catch_up()
    begun, goes_on, commit = threading.Event(), threading.Event(), old.log.commit

    def lost(given: Commit) -> int:
        begun.set()
        if hangs:
            goes_on.wait()
            return commit(given)
        raise FateUnknown("no answer", given.attempt)

    monkeypatch.setattr(old.log, "commit", lost)
    first = asyncio.ensure_future(old.create("b"))
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    second = asyncio.ensure_future(old.create("c"))
    await asyncio.sleep(0)
    # What an earlier controller says is no reason.
    await old.driver.follow_instead(entries_of(old, 0)[:1])
    assert old.driver.is_active
    assert await new.start()
    await new.create("d")
    known = old.image.version
    await old.driver.follow_instead(entries_of(new, known))
    refused = await asyncio.gather(first, second, return_exceptions=True)
    assert [each.code for each in refused if isinstance(each, KafkaError)] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NOT_CONTROLLER,
    ]
    assert not old.driver.is_active
    assert (old.image.controller_id, sorted(old.image.topics)) == (2, ["a", "d"])
    await new.create("e")
    await old.driver.follow(entries_of(new, old.image.version))
    assert "e" in old.image.topics
    if hangs:
        with pytest.raises(OSError, match="did not answer in time"):
            await old.driver.catch_up()
        # It comes too late, behind the next one's decisions.
        before = kinds(memory_path)
        goes_on.set()
        await until(lambda: not old.driver.is_at_store)
        assert kinds(memory_path) == before
    await old.driver.catch_up()
    assert sorted(old.image.topics) == ["a", "d", "e"]
    await stop(old, new)


@in_loop
async def test_a_commit_that_is_still_being_encoded_comes_too_late_for_a_deposed_controller(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread must not take the next controller's decisions for those that it decided on."""
    old, new = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    assert await old.start()
    await new.driver.catch_up()
    begun, goes_on, begin = threading.Event(), threading.Event(), old.log.delta_log.begin

    def slow(change: Change, **named: Any) -> Attempt:
        begun.set()
        goes_on.wait()
        return begin(change, **named)

    monkeypatch.setattr(old.log.delta_log, "begin", slow)
    deciding = asyncio.ensure_future(old.create("rogue"))
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    assert await new.start()
    await old.driver.follow_instead(entries_of(new, old.image.version))
    with pytest.raises(KafkaError):
        await deciding
    before = kinds(memory_path)
    goes_on.set()
    await until(lambda: not old.driver.is_at_store)
    assert kinds(memory_path) == before
    await stop(old, new)


@in_loop
async def test_who_is_told_of_the_next_controller_between_two_commits_does_not_begin_the_second(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for a store that hangs, and nobody would tell it again."""
    old, new = Broker(memory_path, node_id=1), Broker(memory_path, node_id=2)
    assert await old.start()
    begun, applied, is_back = asyncio.Event(), asyncio.Event(), threading.Event()

    async def apply(_: Sequence[Event]) -> None:
        begun.set()
        await applied.wait()

    await old.publish_to(apply)
    first = asyncio.ensure_future(old.create("a"))
    await begun.wait()
    second = asyncio.ensure_future(old.create("b"))
    await new.driver.catch_up()
    assert await new.start()
    commit = old.log.commit

    def hang(given: Commit) -> int:
        is_back.wait()
        return commit(given)

    monkeypatch.setattr(old.log, "commit", hang)
    applied.set()
    try:
        async with asyncio.timeout(60):
            await old.driver.follow_instead(entries_of(new, old.image.version))
        await first
        with pytest.raises(KafkaError):
            await second
        assert (old.image.controller_id, sorted(old.image.topics)) == (2, ["a"])
    finally:
        is_back.set()
        await stop(old, new)


@in_loop
async def test_a_look_into_a_log_that_hangs_keeps_no_controller_from_following_the_next_one(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = await deposed(memory_path)
    begun, goes_on, read_after = threading.Event(), threading.Event(), old.log.read_after

    def hang(version: int) -> list[tuple[int, list[Event]]]:
        begun.set()
        goes_on.wait()
        return read_after(version)

    monkeypatch.setattr(old.log, "read_after", hang)
    looking = asyncio.ensure_future(old.driver.confirm())
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    await old.driver.follow_instead(entries_of(new, old.image.version))
    assert not old.driver.is_active
    assert (old.image.controller_id, sorted(old.image.topics)) == (2, ["a", "b"])
    with pytest.raises(OSError, match="another broker has become the controller"):
        await looking
    goes_on.set()
    await stop(old, new)


@in_loop
async def test_who_waits_for_a_commit_that_is_given_up_is_told(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.controller.metadata_driver.STOP_SECONDS_MAX", 0.01)
    broker = Broker(memory_path)
    assert await broker.start()
    goes_on, commit = threading.Event(), broker.log.commit

    def wait(begun: Commit) -> int:
        goes_on.wait()
        return commit(begun)

    monkeypatch.setattr(broker.log, "commit", wait)
    asking = asyncio.ensure_future(broker.create("t"))
    await asyncio.sleep(0)
    await broker.driver.step_down()
    with pytest.raises(KafkaError) as refused:
        await asking
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    goes_on.set()
    await stop(broker)


@in_loop
async def test_a_store_that_hangs_keeps_no_broker_from_stopping(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hands over first, and what it gave up then is not waited for in the end."""
    monkeypatch.setattr("broker.controller.metadata_driver.STOP_SECONDS_MAX", 0.01)
    broker, hangs, is_back = Broker(memory_path), threading.Event(), threading.Event()
    await broker.start()
    commit = broker.log.commit

    def wait(begun: Commit) -> int:
        hangs.set()
        is_back.wait()
        return commit(begun)

    monkeypatch.setattr(broker.log, "commit", wait)
    creating = asyncio.ensure_future(broker.create("t"))
    await asyncio.get_running_loop().run_in_executor(None, hangs.wait)
    # If it is waited for, that ends, too.
    last_word = threading.Timer(20, is_back.set)
    last_word.start()
    await broker.driver.step_down()
    with pytest.raises(KafkaError):
        await creating
    await broker.driver.stop()
    assert not is_back.is_set()
    last_word.cancel()
    is_back.set()
