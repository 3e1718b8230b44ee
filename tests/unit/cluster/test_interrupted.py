"""Work on the metadata that is cut short: askers that go away, errors that nobody foresaw."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.cluster.events import Event
from broker.cluster.metadata.log import Commit
from kafka_ds.lake.actions import CorruptLog
from kafka_ds.wire.errors import ErrorCode, KafkaError
from tests.loops import in_loop
from tests.unit.cluster.metadata_broker import Broker, events_of, versions


async def deposed(folder: Path) -> tuple[Broker, Broker]:
    """A controller that does not know yet that another one has its place, and that other one."""
    old, new = Broker(folder, node_id=1), Broker(folder, node_id=2)
    assert await old.start()
    await old.create("a")
    await new.driver.catch_up()
    assert await new.start(dead=1)
    await new.create("b")
    return old, new


async def stop(*brokers: Broker) -> None:
    for broker in brokers:
        await broker.driver.stop()


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

    old.driver.apply = apply
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
    broker = Broker(memory_path)
    assert await broker.start()
    failed: list[BaseException] = []
    broker.driver.on_failed = failed.append
    error = CorruptLog("version 2 is no JSON")

    def fail(*_: object) -> None:
        raise error

    if place == "commit":
        monkeypatch.setattr(broker.log, "commit", fail)
    else:
        broker.driver.on_commit = fail
    answers = await asyncio.gather(
        *(broker.create(f"t{i}") for i in range(3)), return_exceptions=True
    )
    assert failed == [error]
    assert not broker.driver.is_active
    lost = [answer for answer in answers if isinstance(answer, KafkaError)]
    assert all(answer.code is ErrorCode.UNKNOWN_SERVER_ERROR for answer in lost)
    # What was durable when it happened is answered as done, and nothing else is there.
    assert len(answers) - len(lost) == len(broker.image.topics) == 3 * (place == "on_commit")
    assert broker.driver.look(lambda c: sorted(c.image.topics)) == sorted(broker.image.topics)
    assert broker.driver.pending == 0
    with pytest.raises(KafkaError) as refused:
        await broker.create("t9")
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    await stop(broker)


@in_loop
async def test_who_waits_for_a_commit_that_is_given_up_is_told(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cluster.metadata.driver.STOP_SECONDS_MAX", 0.01)
    broker = Broker(memory_path)
    assert await broker.start()
    goes_on, commit = threading.Event(), broker.log.commit

    def wait(begun: Commit) -> int | None:
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
    monkeypatch.setattr("broker.cluster.metadata.driver.STOP_SECONDS_MAX", 0.01)
    broker, hangs, is_back = Broker(memory_path), threading.Event(), threading.Event()
    await broker.start()
    commit = broker.log.commit

    def wait(begun: Commit) -> int | None:
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
