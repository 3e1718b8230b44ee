"""A topic whose partitions' leaders are coordinators: one a lead, and what one mistake of ours leaves to the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.controller.topics import NewTopic
from broker.coordinator.loads import CoordinatorState
from broker.coordinator.result import CoordinatorResult, Instant, Ticket
from broker.coordinator.runtime import CoordinatorContext, CoordinatorRuntime
from broker.membership.internal_topics import InternalTopic
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.records.batch import BatchHeader
from tests.fakes.cluster import image_of
from tests.loops import in_loop, until
from tests.unit.coordinator.partition_bench import PartitionBench


class Context:
    def __init__(self, partition: Any) -> None:
        self.partition = partition
        self.is_closed = False

    def start(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def test_nothing_is_kept_of_a_coordinator_whose_lead_is_over() -> None:
    led: dict[int, str] = {0: "the first lead", 1: "another partition"}
    image = image_of(topics={("__x", bytes(16)): 2})
    controller: Any = None  # The topic is there.
    topic: CoordinatorRuntime[Any] = CoordinatorRuntime(
        InternalTopic(
            NewTopic(name="__x"), is_factor_set=False, image=image, controller=controller
        ),
        partitions=SimpleNamespace(find=lambda _, index: led.get(index)),  # type: ignore[arg-type]
        image=image,
        begin=Context,  # type: ignore[arg-type]
    )
    topic.start()
    first, other = topic.begun()
    assert (first.partition, other.partition) == ("the first lead", "another partition")
    del led[0]
    first.close()
    topic.start()
    assert list(topic.begun()) == [other]
    led[0] = "the second lead"
    assert [context.partition for context in topic.led_here()] == [
        "the second lead",
        "another partition",
    ]


@dataclass(frozen=True)
class Effect:
    key: str


class Words:
    """A machine that knows the words of its log; each event is a function of it."""

    def __init__(self) -> None:
        self.words: list[bytes] = []
        self.told: list[ErrorCode | None] = []

    def replay_batch(self, data: bytes | bytearray, position: int, header: BatchHeader) -> int:
        return 1

    def loaded(self, now: Instant) -> CoordinatorResult:
        return CoordinatorResult()

    def handle(
        self, event: Callable[[Ticket], CoordinatorResult], ticket: Ticket, now: Instant
    ) -> CoordinatorResult:
        return event(ticket)

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        key, value = record
        return key, value

    def replay(self, key: Any, value: Any, *, record_offset: int, producer_id: int) -> None:
        self.words.append(key)

    def written(
        self, result: CoordinatorResult, code: ErrorCode | None, now: Instant
    ) -> CoordinatorResult | None:
        self.told.append(code)
        return None

    def next_due_ms(self) -> int | None:
        return None

    def tick(self, now: Instant) -> CoordinatorResult | None:
        return None


def says(word: bytes, *effects: str, storing: object = None) -> Callable[[Ticket], Any]:
    return lambda _: CoordinatorResult(
        records=((word, b""),),
        response=word,
        effects=tuple(Effect(each) for each in effects),
        storing=storing,
    )


class Performer:
    """Performs what it can: an effect that is called `bad` is a mistake of ours."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __call__(self, context: CoordinatorContext[Words], effect: Effect) -> None:
        if effect.key == "bad":
            raise AssertionError("ours")
        self.done.append(effect.key)


def said_wrong(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]


@in_loop
async def test_an_effect_that_fails_takes_nothing_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, performer = PartitionBench(tmp_path, "__x", followers=1), Performer()
    context = bench.context(Words(), perform=performer)
    first = context.submit(says(b"a", "before", "bad", "after"))
    second = context.submit(says(b"b", "next"))
    third = context.submit(says(b"c"))
    bench.replicate()
    assert await asyncio.wait_for(third, 5) == b"c"
    assert await second == b"b"
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
        await first
    assert performer.done == ["before", "after", "next"]
    assert said_wrong(caplog) == ["__x-0: Unexpected error while performing an effect for bad"]
    context.close()


@in_loop
async def test_an_effect_that_fails_at_once_is_an_error_of_the_coordinator(tmp_path: Path) -> None:
    context = PartitionBench(tmp_path, "__x").context(Words(), perform=Performer())
    with pytest.raises(KafkaError) as refused:
        context.submit(says(b"a", "bad"))
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert context.submit(says(b"b")) == b"b"
    context.close()


def refuses(_: Ticket) -> CoordinatorResult:
    raise KafkaError(ErrorCode.INVALID_REQUEST, "not so")


def fails(_: Ticket) -> CoordinatorResult:
    raise AssertionError("ours")


@in_loop
async def test_an_event_that_waited_for_the_log_and_is_refused_concerns_itself_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = PartitionBench(tmp_path, "__x")
    before = bench.context(Words())
    before.submit(says(b"a"))
    assert before.run(refuses) is not None, "who runs it hears of it"
    before.close()
    context = bench.context(Words())
    for event in (refuses, fails, says(b"b")):
        assert context.run(event) is None
    await until(lambda: context.state is not CoordinatorState.LOADING)
    assert context.state is CoordinatorState.ACTIVE
    assert context.shard.words == [b"b"]
    assert said_wrong(caplog) == ["__x-0: Unexpected error in a deferred event"]
    assert "INVALID_REQUEST" in caplog.text
    context.close()


@pytest.mark.interpreted
@in_loop
async def test_a_machine_hears_of_its_records_where_that_means_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = PartitionBench(tmp_path, "__x")
    context = bench.context(Words())
    context.submit(says(b"a"))
    assert context.shard.told == []
    context.submit(says(b"b", storing="b"))
    monkeypatch.setattr(bench.log, "append", lambda *_, **__: refuses(0))
    with pytest.raises(KafkaError):
        context.submit(says(b"c"))
    assert context.shard.told == [None, ErrorCode.INVALID_REQUEST]
    assert context.shard.words == [b"a", b"b"]
    context.close()
