"""CreateTopics, DeleteTopics and Metadata through the real codec, over a real cluster's log."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.coordinator.runtime import CoordinatorRuntime
from broker.handlers.cluster import metadata
from broker.membership.requests import ControllerRequests
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    MetadataRequest,
)
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from kafka_ds.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    DeleteTopicState,
)
from kafka_ds.protocol.types import NO_UUID
from tests.in_process import InProcess, batch_of, in_process
from tests.loops import in_loop
from tests.requests import build


def topic(name: str, **fields: Any) -> CreatableTopic:
    given: dict[str, Any] = {
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    return CreatableTopic(name=name, **(given | fields))


async def create(
    broker: InProcess, *topics: CreatableTopic, version: int = 7, **fields: Any
) -> Any:
    response = await broker.ask(CreateTopicsRequest(topics=list(topics), **fields), version)
    return response.topics


@pytest.mark.parametrize("version", range(2, 8))
@in_loop
async def test_topics_are_created_in_every_version(memory_path: Path, version: int) -> None:
    async with in_process(memory_path, num_partitions=3) as broker:
        configs = [CreatableTopicConfig(name="retention.ms", value="1234")]
        made, defaults, assigned, refused = await create(
            broker,
            topic("made", num_partitions=2, configs=configs),
            topic("defaults", num_partitions=-1, replication_factor=-1),
            topic(
                "assigned", num_partitions=-1, replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
            ),
            topic("bad/name"),
            version=version,
        )  # fmt: skip
        assert [t.error_code for t in (made, defaults, assigned)] == [0, 0, 0]
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "bad/name" in refused.error_message
        image = broker.node.metadata
        assert [len(image.topics[n].partitions) for n in ("made", "defaults", "assigned")] == [
            2,
            3,
            1,
        ]
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (2, 1)
            told = {c.name: (c.value, c.config_source) for c in made.configs}
            assert told["retention.ms"] == ("1234", 1)
            assert told["segment.bytes"] == ("1073741824", 5)
            assert refused.configs == []
        if version >= 7:
            assert made.topic_id == image.topics["made"].topic_id
        # Open for appends at once.
        assert (await broker.produce("made", batch_of([b"a"]), partition=1)).error_code == 0


@in_loop
async def test_settings_that_make_no_sense_are_named(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        for name, value in (
            ("segment.bytes", "12"),
            ("segment.bytes", "many"),
            ("no.such.setting", "1"),
            ("cleanup.policy", "shred"),
            ("retention.ms", None),
            ("remote.storage.enable", "true"),
        ):
            config = CreatableTopicConfig(name=name, value=value)
            (refused,) = await create(broker, topic("t", configs=[config]))
            assert refused.error_code == ErrorCode.INVALID_CONFIG
            assert name in refused.error_message
        assert not broker.node.metadata.topics


@in_loop
async def test_validate_only(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        good, bad = await create(
            broker, topic("a", num_partitions=4), topic("b", num_partitions=0), validate_only=True
        )
        assert (good.error_code, good.num_partitions, good.topic_id) == (0, 4, NO_UUID)
        assert bad.error_code == ErrorCode.INVALID_PARTITIONS
        assert not broker.node.metadata.topics


@in_loop
async def test_a_decision_that_takes_too_long_times_out(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:

        async def never(*_: object, **__: object) -> None:
            await asyncio.sleep(60)

        with monkeypatch.context() as patched:
            patched.setattr(broker.node.metadata_driver, "decide", never)
            (late,) = await create(broker, topic("a"), timeout_ms=10)
            assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
            delete = DeleteTopicsRequest(topic_names=["a"], timeout_ms=10)
            response = await broker.ask(delete, 5)
            assert response.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("version", range(1, 7))
@in_loop
async def test_topics_are_deleted_in_every_version(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("a", 2)
        await broker.create("b")
        names, topics = ["a", "z"], [
            DeleteTopicState(name=None, topic_id=topic_id),
            DeleteTopicState(name="z", topic_id=NO_UUID),
            DeleteTopicState(name=None, topic_id=b"\x01" * 16),
        ]  # fmt: skip
        request = DeleteTopicsRequest(
            topic_names=names if version < 6 else [],
            topics=topics if version >= 6 else [],
            timeout_ms=1000,
        )
        response = await broker.ask(request, version)
        codes = [(r.name, r.error_code) for r in response.responses]
        expected = [("a", 0), ("z", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert codes[:2] == expected
        assert codes[2:] == ([(None, ErrorCode.UNKNOWN_TOPIC_ID)] if version >= 6 else [])
        assert list(broker.node.metadata.topics) == ["b"]
        assert (await broker.fetch("a", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not [p for p in (memory_path / "log").iterdir() if p.name in ("a-0", "a-1")]


@pytest.mark.parametrize(
    ("version", "code"),
    [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)],
)
@in_loop
async def test_deletion_may_be_disabled(memory_path: Path, version: int, code: ErrorCode) -> None:
    async with in_process(memory_path, delete_topic_enable="false") as broker:
        await broker.create("a")
        request = DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000)
        response = await broker.ask(request, version)
        assert response.responses[0].error_code == code


@in_loop
async def test_a_name_that_comes_back_has_another_id_and_an_empty_log(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        first = await broker.create("a")
        await broker.produce("a", batch_of([b"old"]))
        await broker.ask(DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000), 5)
        second = await broker.create("a")
        assert first != second
        assert (await broker.produce("a", batch_of([b"new"]))).base_offset == 0
        gone = await broker.fetch("", 0, version=13, topic_id=first)
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    async with in_process(memory_path) as broker:
        assert broker.node.metadata.topics["a"].topic_id == second
        assert (await broker.fetch("a", 0)).high_watermark == 1


# -- metadata -----------------------------------------------------------------------------------


def wanted(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


@pytest.mark.parametrize("version", range(0, 14))
@in_loop
async def test_every_version_tells_who_leads(memory_path: Path, version: int) -> None:
    async with in_process(memory_path, broker_rack="r1") as broker:
        topic_id = await broker.create("t", 2)
        response = await broker.ask(MetadataRequest(topics=wanted("t")), version)
        (node,) = response.brokers
        assert (node.node_id, node.host, node.port) == (1, *broker.owner.bound_address)
        assert node.rack == ("r1" if version >= 1 else None)
        assert response.cluster_id == (broker.node.metadata.cluster_id if version >= 2 else None)
        assert response.controller_id == (1 if version >= 1 else -1)
        (told,) = response.topics
        assert (told.error_code, told.name, told.is_internal) == (0, "t", False)
        assert told.topic_id == (topic_id if version >= 10 else NO_UUID)
        assert told.topic_authorized_operations == -2147483648
        assert response.cluster_authorized_operations == -2147483648
        for index, partition in enumerate(told.partitions):
            assert (partition.error_code, partition.partition_index) == (0, index)
            assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (
                1,
                [1],
                [1],
            )
            assert partition.leader_epoch == (0 if version >= 7 else -1)


@in_loop
async def test_all_topics_or_none(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        for name in ("a", "b"):
            await broker.create(name)

        async def told(topics: list[MetadataRequestTopic] | None, version: int) -> list[str]:
            response = await broker.ask(MetadataRequest(topics=topics), version)
            return sorted(t.name for t in response.topics)

        assert await told([], 0) == ["a", "b"]
        assert await told([], 1) == []
        assert await told(None, 1) == await told(None, 13) == ["a", "b"]


@in_loop
async def test_topics_by_id(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("t")
        asked = [
            MetadataRequestTopic(name=None, topic_id=topic_id),
            MetadataRequestTopic(name=None, topic_id=b"\x01" * 16),
            MetadataRequestTopic(name=None, topic_id=NO_UUID),
        ]
        response = await broker.ask(MetadataRequest(topics=asked), 12)
        assert [(t.name, t.error_code) for t in response.topics] == [
            ("t", 0),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        for version in (10, 11):
            response = await broker.ask(MetadataRequest(topics=asked[:1]), version)
            assert response.topics[0].error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_topics_are_created_for_those_who_ask(memory_path: Path) -> None:
    async with in_process(memory_path, num_partitions=2) as broker:
        request = MetadataRequest(topics=wanted("new", "bad/name"))
        response = await broker.ask(request, 8)
        new, bad = response.topics
        assert (new.error_code, len(new.partitions)) == (0, 2)
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await broker.produce("new", batch_of([b"a"]))).error_code == 0
        again = await broker.ask(request, 8)
        assert again.topics[0].partitions == new.partitions
        # Two that cannot be told apart: the second is refused.
        response = await broker.ask(MetadataRequest(topics=wanted("a.b", "a_b")), 8)
        assert [t.error_code for t in response.topics] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]


@in_loop
async def test_topics_are_not_created_where_that_is_not_wanted(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        request = MetadataRequest(topics=wanted("new"), allow_auto_topic_creation=False)
        response = await broker.ask(request, 8)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with in_process(memory_path, auto_create_topics_enable="false") as broker:
        response = await broker.ask(MetadataRequest(topics=wanted("new")), 8)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not broker.node.metadata.topics


@in_loop
async def test_topics_of_coordinators_are_made_by_their_own_settings(memory_path: Path) -> None:
    """A tool that reads the groups' offsets may be the first to name them: before any group."""
    names = ("__consumer_offsets", "__transaction_state")
    settings = {"offsets_topic_num_partitions": 3, "transaction_state_log_num_partitions": 2}
    async with in_process(memory_path, **settings) as broker:
        response = await broker.ask(MetadataRequest(topics=wanted(*names, "new")), 8)
        told = [(t.name, t.error_code, len(t.partitions), t.is_internal) for t in response.topics]
        assert told == [(names[0], 0, 3, True), (names[1], 0, 2, True), ("new", 0, 1, False)]
        topics = broker.node.metadata.topics
        assert {topics[name].configs["cleanup.policy"] for name in names} == {"compact"}


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE])
@in_loop
async def test_a_topic_that_is_not_heard_of_yet_is_asked_for_again(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    async def made_elsewhere(*_: object) -> None:
        """Another broker has done it."""

    made = build(CreateTopicsResponse, topics=[{"name": "new", "error_code": code}])
    async with in_process(memory_path) as broker:
        with monkeypatch.context() as patched:
            patched.setattr(metadata, "guarded", lambda *_: made)
            patched.setattr(ControllerRequests, "seen", made_elsewhere)
            patched.setattr(CoordinatorRuntime, "ensure", made_elsewhere)
            request = MetadataRequest(topics=wanted("new", "__consumer_offsets"))
            response = await broker.ask(request, 8)
        told = [topic.error_code for topic in response.topics]
        assert told == [ErrorCode.LEADER_NOT_AVAILABLE] * 2


@in_loop
async def test_many_clients_that_ask_for_one_new_topic_get_one(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        request = MetadataRequest(topics=wanted("new"))
        responses = await asyncio.gather(*(broker.ask(request, 12) for _ in range(5)))
        ids = {r.topics[0].topic_id for r in responses}
        assert [r.topics[0].error_code for r in responses] == [0] * 5
        assert len(ids) == 1


@in_loop
async def test_operations_are_told_where_asked_for(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        request = MetadataRequest(
            topics=wanted("t"),
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        response = await broker.ask(request, 8)
        assert response.topics[0].topic_authorized_operations == 0b1101_1111_1000
        assert response.cluster_authorized_operations == 0b1_1111_1010_0000


@in_loop
async def test_partitions_without_a_leader_say_so(memory_path: Path) -> None:
    from dataclasses import replace

    async with in_process(memory_path) as broker:
        await broker.create("t", 2)
        partitions = broker.node.metadata.topics["t"].partitions
        partitions[0] = replace(partitions[0], leader=-1)
        partitions[1] = replace(partitions[1], leader=5, replicas=(5,))
        response = await broker.ask(MetadataRequest(topics=wanted("t")), 12)
        first, second = response.topics[0].partitions
        assert (first.error_code, first.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert (second.error_code, second.leader_id) == (ErrorCode.LISTENER_NOT_FOUND, -1)
        assert second.offline_replicas == [5]


@in_loop
async def test_kafkas_own_topics_are_marked(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("__transaction_state")
        response = await broker.ask(MetadataRequest(topics=wanted("__transaction_state")), 12)
        assert response.topics[0].is_internal
