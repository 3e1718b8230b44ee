"""Records of a share group that cannot be delivered, at a broker: where they go, and what happens if they cannot."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from broker.broker_metrics import broker_samples
from broker.share import dead_letter_queue
from broker.share.share_partition import RecordState
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    UpdateFeaturesRequest,
)
from kafka_ds.protocol.messages.share_state import DeleteStatePartition
from tests.in_process import InProcess, batch_of, in_process, in_process_cluster, records_of
from tests.loops import in_loop, until
from tests.requests import build
from tests.unit.share.share_members import GROUP, Member, batch, configure, initialize

ACCEPT, RELEASE, REJECT = 1, 2, 3
HAPPENS_MS = 20_000
TOPIC_NAME, COPY = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
FAILED = "kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequests_total"


async def topic_of(broker: InProcess, *values: bytes, partitions: int = 1, **dead: Any) -> bytes:
    """A topic with these records in its last partition, of a group with these settings."""
    topic_id = await broker.create("t", partitions)
    if values:
        await broker.produce("t", batch_of(values), partition=partitions - 1)
    await initialize(broker, topic_id, partitions=partitions)
    await configure(broker, {"share.delivery.count.limit": 2, **dead})
    return topic_id


async def letters_in(broker: InProcess, topic: str, partition: int = 0) -> list[tuple[Any, ...]]:
    """Key, value, and headers as text of each dead letter."""
    found: list[Any] = []
    while read := records_of((await broker.fetch(topic, len(found), partition=partition)).records):
        found += read
    return [
        (
            each.key,
            each.value,
            {name.decode(): (text or b"").decode() for name, text in each.headers},
        )
        for each in found
    ]


def samples(broker: InProcess) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(metric.name, labels): value for metric, labels, value in broker_samples(broker.node)}


def is_done(broker: InProcess) -> bool:
    """Whether nothing is in flight any more."""
    return all(led.machine.in_flight == 0 for led in broker.node.share_partitions)


def refuse_once(patch: pytest.MonkeyPatch, queue: object, name: str, error: Exception) -> None:
    """Have the first call of a method fail."""
    real, errors = getattr(queue, name), [error]

    async def called(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return await real(*arguments)

    patch.setattr(queue, name, called)


@in_loop
async def test_rejected_and_exhausted_records_are_written_to_the_dead_letter_topic(
    memory_path: Path,
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", b"b", b"c", **{TOPIC_NAME: "dlq.t"})
        await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
        member = Member(broker, topic_id)
        assert await member.acquire() == [(0, 2, 1)]
        answer = await member.acknowledge(batch(0, 2, REJECT, RELEASE, ACCEPT))
        assert answer.error_code == ErrorCode.NONE
        assert await member.acquire(max_wait_ms=HAPPENS_MS) == [(1, 1, 2)]
        await member.fetch(share_session_epoch=-1)
        # The member has left: what it had goes there, before the share partition is forgotten.
        await until(lambda: not list(broker.node.share_partitions))
        letters = await letters_in(broker, "dlq.t")
        assert [(key, value) for key, value, _ in letters] == [(None, None)] * 2
        assert letters[0][2] == {
            "__dlq.errors.topic": "t",
            "__dlq.errors.partition": "0",
            "__dlq.errors.offset": "0",
            "__dlq.errors.group": GROUP,
            "__dlq.errors.delivery.count": "1",
            "__dlq.errors.message": "Offset rejected by client.",
        }
        assert letters[1][2]["__dlq.errors.offset"] == "1"
        assert letters[1][2]["__dlq.errors.delivery.count"] == "2"
        assert "exceeded" in letters[1][2]["__dlq.errors.message"]
        shown = samples(broker)
        assert (
            shown["kafka_server_sharegroupmetrics_deadletterqueuerecordcount_total", (GROUP,)] == 2
        )


@in_loop
async def test_records_are_copied_to_a_topic_that_is_created(memory_path: Path) -> None:
    settings = {"errors_deadletterqueue_auto_create_topics_enable": "true", "num_partitions": 2}
    async with in_process(memory_path, **settings) as broker:
        given = {TOPIC_NAME: "dlq.t", COPY: "true"}
        values = [b"a", b"b" * 600_000, b"c" * 600_000]
        topic_id = await topic_of(broker, *values[:2], partitions=4, **given)
        await broker.produce("t", batch_of(values[2:]), partition=3)
        member = Member(broker, topic_id, partitions=4)
        acquired = await member.acquire(max_wait_ms=HAPPENS_MS, max_bytes=1 << 24)
        while acquired[-1][1] < 2:
            acquired += await member.acquire(max_wait_ms=HAPPENS_MS)
        answer = await member.acknowledge(batch(0, 2, REJECT), partition=3)
        assert answer.error_code == ErrorCode.NONE
        await until(lambda: is_done(broker))
        # Two batches, as max.message.bytes demands; partition 3 of the source goes to 1 of 2.
        letters = await letters_in(broker, "dlq.t", partition=1)
        assert [value for _, value, _ in letters] == values
        assert {key for key, _, _ in letters} == {b"k"}
        configs = broker.node.metadata.topics["dlq.t"].configs
        assert configs["errors.deadletterqueue.group.enable"] == "true"


@in_loop
@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("dlq.missing", "does not exist"),
        ("dlq.plain", "errors.deadletterqueue.group.enable of dlq.plain is false"),
        ("other", "does not begin with"),
        ("__consumer_offsets", "internal"),
    ],
)
async def test_a_wrong_topic_is_said_and_holds_nothing_up(
    topic: str, why: str, memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", **{TOPIC_NAME: topic})
        await broker.create("dlq.plain")
        member = Member(broker, topic_id)
        assert await member.acquire() == [(0, 0, 1)]
        with caplog.at_level(logging.ERROR):
            await member.acknowledge(batch(0, 0, REJECT))
            await until(lambda: is_done(broker))
        assert why in caplog.text
        assert "offsets 0 to 0" in caplog.text
        assert samples(broker)[FAILED, (GROUP,)] == 1


async def rejected(broker: InProcess, topic_id: bytes, last: int) -> None:
    """A member rejects all records up to `last`, and all that follows is done."""
    member = Member(broker, topic_id)
    acquired = await member.acquire(max_wait_ms=HAPPENS_MS, max_bytes=1 << 24)
    while acquired[-1][1] < last:
        acquired += await member.acquire(max_wait_ms=HAPPENS_MS, max_bytes=1 << 24)
    assert not (await member.acknowledge(batch(0, last, REJECT))).error_code
    await until(lambda: is_done(broker))


@in_loop
async def test_a_record_that_is_too_large_is_written_without_its_copy(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", **{TOPIC_NAME: "dlq.t", COPY: "true"})
        await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
        for value in (bytes(1_048_450), b"c"):
            assert not (await broker.produce("t", batch_of([value]))).error_code
        await rejected(broker, topic_id, 2)
        assert [value for _, value, _ in await letters_in(broker, "dlq.t")] == [b"a", None, b"c"]
        assert "Offset 1 of t-0 with the headers of a dead letter exceeds" in caplog.text
        assert (FAILED, (GROUP,)) not in samples(broker)


@in_loop
async def test_a_batch_that_is_refused_loses_no_other_letters(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", **{TOPIC_NAME: "dlq.t", COPY: "true"})
        await broker.produce("t", batch_of([bytes(1_048_200)]))
        await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
        queue = broker.node.share_partitions.dead_letters
        # The first batch only: the second has the large record.
        refuse_once(monkeypatch, queue, "_produce", KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
        await rejected(broker, topic_id, 1)
        letters = await letters_in(broker, "dlq.t")
        assert [headers["__dlq.errors.offset"] for *_, headers in letters] == ["1"]
        assert "offsets 0 to 0: MESSAGE_TOO_LARGE" in caplog.text
        assert samples(broker)[FAILED, (GROUP,)] == 1


@in_loop
@pytest.mark.parametrize("what", ["create_topics", "_read", "_produce"])
async def test_what_fails_for_a_while_is_tried_again(
    what: str, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_queue, "BACKOFF_SECONDS", 0.01)
    async with in_process(
        memory_path, errors_deadletterqueue_auto_create_topics_enable="true"
    ) as broker:
        topic_id = await topic_of(broker, b"a", **{TOPIC_NAME: "dlq.t", COPY: "true"})
        queue = broker.node.share_partitions.dead_letters
        asked = broker.node.member.requests if what == "create_topics" else queue
        refuse_once(monkeypatch, asked, what, KafkaError(ErrorCode.NOT_CONTROLLER))
        await rejected(broker, topic_id, 0)
        assert [value for _, value, _ in await letters_in(broker, "dlq.t")] == [b"a"]
        assert (FAILED, (GROUP,)) not in samples(broker)


@in_loop
async def test_records_that_cannot_be_read_cost_no_other_copies(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", **{TOPIC_NAME: "dlq.t", COPY: "true"})
        for value in (b"b", b"c", b"d"):
            await broker.produce("t", batch_of([value]))
        await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
        queue = broker.node.share_partitions.dead_letters
        refuse_once(monkeypatch, queue, "_read", KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        member = Member(broker, topic_id)
        assert (await member.acquire(max_wait_ms=HAPPENS_MS))[-1][1] == 3
        partitions = [{"partition_index": 0, "offset": 2}]
        topics = [{"name": "t", "partitions": partitions}]
        await broker.ask(build(DeleteRecordsRequest, topics=topics, timeout_ms=5_000), 2)
        assert not (await member.acknowledge(batch(0, 3, REJECT))).error_code
        await until(lambda: is_done(broker))
        # The first two are deleted, the third is the one that cannot be read.
        letters = await letters_in(broker, "dlq.t")
        assert [value for _, value, _ in letters] == [None, None, None, b"d"]
        assert "Cannot read t-0 at offset 2" in caplog.text


@in_loop
async def test_an_error_that_nobody_expects_holds_nothing_up(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", **{TOPIC_NAME: "dlq.t"})
        await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
        queue = broker.node.share_partitions.dead_letters
        refuse_once(monkeypatch, queue, "_send", ValueError("another answer"))
        await rejected(broker, topic_id, 0)
        assert "offsets 0 to 0: another answer; the records are archived without" in caplog.text
        assert "Traceback" in caplog.text
        assert samples(broker)[FAILED, (GROUP,)] == 1


@in_loop
async def test_that_records_are_archived_is_written_again_if_it_fails(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_queue, "BACKOFF_SECONDS", 0.01)
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", b"b", **{TOPIC_NAME: "dlq.t"})
        await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
        persister = broker.node.share_partitions.persister
        real, outcomes = persister.write_state, list[int]()

        async def write_state(group_id: str, wanted: Any) -> Any:
            results = await real(group_id, wanted)
            (asked,) = wanted.values()
            if any(each.delivery_state == RecordState.ARCHIVED for each in asked.state_batches):
                (result,) = results.values()
                if not outcomes:
                    result.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                outcomes.append(result.error_code)
            return results

        monkeypatch.setattr(persister, "write_state", write_state)
        member = Member(broker, topic_id)
        assert await member.acquire() == [(0, 1, 1)]
        # The first record stays in flight, so that no later start offset says it of the second.
        assert not (await member.acknowledge(batch(1, 1, REJECT))).error_code
        await until(lambda: len(outcomes) == 2)
        assert outcomes == [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]
        assert len(await letters_in(broker, "dlq.t")) == 1


@in_loop
async def test_groups_without_dead_letter_topic_are_counted_no_longer(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", **{TOPIC_NAME: "dlq.t"})
        await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
        queue = broker.node.share_partitions.dead_letters
        queue.records["gone"] = queue.failed["gone"] = 1
        await rejected(broker, topic_id, 0)
        assert (dict(queue.records), dict(queue.failed)) == ({GROUP: 1}, {})


@in_loop
@pytest.mark.parametrize("gone", ["topic", "state"])
async def test_dead_letters_that_go_with_their_topic_or_group_are_said(
    gone: str,
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", b"b", **{TOPIC_NAME: "dlq.t"})
        await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
        shares = broker.node.share_partitions
        refused = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        refuse_once(monkeypatch, shares.dead_letters, "_produce", refused)
        member = Member(broker, topic_id)
        assert await member.acquire() == [(0, 1, 1)]
        assert not (await member.acknowledge(batch(0, 0, REJECT))).error_code
        if gone == "topic":
            topics = [{"name": "t", "topic_id": bytes(16)}]
            await broker.ask(build(DeleteTopicsRequest, topics=topics, timeout_ms=10_000), 6)
        else:
            wanted = {(topic_id, 0): DeleteStatePartition(partition=0)}
            await broker.node.shares.persister.delete_state(GROUP, wanted)
            assert (await member.acknowledge(batch(1, 1, ACCEPT))).error_code
        await until(lambda: not list(shares))
        assert "offsets 0 to 0" in caplog.text
        assert samples(broker)[FAILED, (GROUP,)] == 1


@in_loop
async def test_a_broker_that_starts_writes_what_was_archiving(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # The topic's leader cannot be found, and is looked for again later.
        patch.setattr(dead_letter_queue, "endpoint_of", lambda *_: None)
        async with in_process(memory_path) as broker:
            topic_id = await topic_of(broker, b"a", b"b", **{TOPIC_NAME: "dlq.t"})
            await broker.create("dlq.t", errors_deadletterqueue_group_enable="true")
            member = Member(broker, topic_id)
            assert await member.acquire() == [(0, 1, 1)]
            await member.acknowledge(batch(0, 0, REJECT))
            queue = broker.node.share_partitions.dead_letters
            await until(lambda: queue.requests[GROUP] > 0)
    async with in_process(memory_path) as broker:
        await until(lambda: all(each.is_active for each in broker.node.shares.runtime.begun()))
        assert await Member(broker, topic_id).acquire(max_wait_ms=HAPPENS_MS) == [(1, 1, 1)]
        (led,) = broker.node.share_partitions
        await until(lambda: led.machine.start_offset == 1)
        assert [each[2]["__dlq.errors.offset"] for each in await letters_in(broker, "dlq.t")] == [
            "0"
        ]


@in_loop
async def test_another_broker_may_lead_the_dead_letter_topic(memory_path: Path) -> None:
    async with in_process_cluster(memory_path, 2) as cluster:
        one, two = (cluster.nodes[number] for number in (1, 2))
        enabled = {"name": "errors.deadletterqueue.group.enable", "value": "true"}
        topics = [
            {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [leader]}],
                "configs": [enabled],
            }
            for name, leader in (("t", 1), ("dlq.t", 2))
        ]
        answer = await one.ask(build(CreateTopicsRequest, topics=topics, timeout_ms=10_000), 7)
        assert not any(each.error_code for each in answer.topics)
        await cluster.until(
            "the topics", lambda: all(len(n.node.metadata.topics) >= 2 for n in (one, two))
        )
        assert not (await one.produce("t", batch_of([b"a"]))).error_code
        topic_id = answer.topics[0].topic_id
        await initialize(one, topic_id)
        await configure(one, {TOPIC_NAME: "dlq.t", COPY: "true"})
        await cluster.until("the group", lambda: GROUP in one.node.metadata.group_configs)
        member = Member(one, topic_id)
        assert await member.acquire(max_wait_ms=HAPPENS_MS) == [(0, 0, 1)]
        assert not (await member.acknowledge(batch(0, 0, REJECT))).error_code
        await until(lambda: is_done(one))
        assert [value for _, value, _ in await letters_in(two, "dlq.t")] == [b"a"]


@in_loop
async def test_there_are_none_at_the_level_of_share_groups_without(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await topic_of(broker, b"a", **{TOPIC_NAME: "dlq.t"})
        update = {"feature": "share.version", "max_version_level": 1, "upgrade_type": 2}
        answer = await broker.ask(build(UpdateFeaturesRequest, feature_updates=[update]), 1)
        assert not answer.error_code, answer
        member = Member(broker, topic_id)
        assert await member.acquire() == [(0, 0, 1)]
        await member.acknowledge(batch(0, 0, REJECT))
        assert is_done(broker)
        assert (FAILED, (GROUP,)) not in samples(broker)
