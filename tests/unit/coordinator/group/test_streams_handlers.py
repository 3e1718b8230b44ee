"""The APIs of streams groups through codec, handlers, the coordinator and its log (KIP-1071)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from broker.controller.topics import NewTopic, TopicResult
from broker.coordinator.group.streams_internal_topics import StreamsInternalTopics
from broker.metadata.acls import AclOperation
from broker.principal import ANONYMOUS, Principal
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    UpdateFeaturesRequest,
)
from kafka_ds.protocol.messages.streams_groups import StreamsGroupStatus
from tests.fakes.clock import ManualClock
from tests.in_process import InProcess, in_process
from tests.loops import in_loop
from tests.requests import build
from tests.unit.coordinator.group.streams_desk import (
    internal,
    subtopology,
    topology,
    word_count,
)
from tests.unit.security.acl_names import ALICE, GROUP, TOPIC, allow
from tests.unit.security.acl_names import SETTINGS as SECURED

SETTINGS = {
    "offsets_topic_num_partitions": 2,
    "group_streams_initial_rebalance_delay_ms": 0,
    "group_streams_assignment_interval_ms": 0,
}


def begun(folder: Path) -> Any:
    return in_process(folder, **SETTINGS)


async def beat(broker: InProcess, epoch: int, *, who: Principal = ANONYMOUS, **more: Any) -> Any:
    joining: dict[str, Any] = {}
    if epoch == 0:
        joining = {
            "rebalance_timeout_ms": 60_000,
            "topology": word_count(),
            "process_id": "p",
            "client_tags": [],
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
        }
    request = StreamsGroupHeartbeatRequest(
        **{"group_id": "g", **joining, **more},
        member_id="m",
        member_epoch=epoch,
        endpoint_information_epoch=-1,
    )
    return await broker.ask(request, 1, principal=who)


async def prepared(broker: InProcess) -> None:
    response = await broker.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
    assert response.error_code == ErrorCode.NONE


@in_loop
async def test_a_member_has_its_internal_topics_created(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await broker.create("lines", partitions=2)
        await prepared(broker)
        response = await beat(broker, 0)
        assert [each.status_code for each in response.status] == [
            StreamsGroupStatus.MISSING_INTERNAL_TOPICS
        ]
        while response.status:
            assert response.error_code == ErrorCode.NONE, response.error_message
            await asyncio.sleep(0.01)
            response = await beat(broker, response.member_epoch)
        assert [(t.subtopology_id, t.partitions) for t in response.active_tasks] == [
            ("0", [0, 1]),
            ("1", [0, 1]),
        ]
        topics = broker.node.metadata.topics
        assert topics["counts"].configs == {"cleanup.policy": "compact"}
        assert len(topics["words"].partitions) == 2
        request = StreamsGroupDescribeRequest(
            group_ids=["g", ""], include_authorized_operations=True
        )
        group, nameless = (await broker.ask(request, 1)).groups
        assert (group.group_state, group.assignor_name) == ("Stable", "sticky")
        assert group.members[0].client_id == "test" and group.authorized_operations > 0
        assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
        assert (await beat(broker, -1)).member_epoch == -1


@in_loop
async def test_names_that_no_topic_may_have_are_refused(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await prepared(broker)
        for name in ("__consumer_offsets", "a b"):
            response = await beat(broker, 0, topology=topology(subtopology("0", name)))
            assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
            assert name in response.error_message
        response = await beat(broker, 0, group_id=" ")
        assert (response.error_code, response.member_id) == (ErrorCode.INVALID_REQUEST, "")


@in_loop
async def test_streams_groups_are_turned_off(memory_path: Path) -> None:
    async with begun(memory_path) as broker:
        await prepared(broker)
        updates = [{"feature": "streams.version", "max_version_level": 0, "upgrade_type": 2}]
        await broker.ask(build(UpdateFeaturesRequest, feature_updates=updates), 1)
        assert (await beat(broker, 0)).error_code == ErrorCode.UNSUPPORTED_VERSION
        request = StreamsGroupDescribeRequest(group_ids=["g"])
        (group,) = (await broker.ask(request, 0)).groups
        assert group.error_code == ErrorCode.UNSUPPORTED_VERSION


@in_loop
async def test_protocols_that_the_settings_leave_out_are_refused_as_by_kafka(
    memory_path: Path,
) -> None:
    protocols = "classic,share"
    async with in_process(
        memory_path, **SETTINGS, group_coordinator_rebalance_protocols=protocols
    ) as broker:
        await prepared(broker)
        answers = [await beat(broker, 0)]
        request = ConsumerGroupHeartbeatRequest(
            group_id="c", member_id="m", member_epoch=0, rebalance_timeout_ms=1_000
        )
        answers.append(await broker.ask(request, 1))
        answers += (await broker.ask(StreamsGroupDescribeRequest(group_ids=["g"]), 0)).groups
        answers += (await broker.ask(ConsumerGroupDescribeRequest(group_ids=["c"]), 0)).groups
    said = [(each.error_code, each.error_message) for each in answers]
    assert said == [(ErrorCode.UNSUPPORTED_VERSION, None)] * 4


@in_loop
async def test_a_member_may_describe_its_topics_and_create_those_that_are_missing(
    memory_path: Path,
) -> None:
    async with in_process(memory_path, **SETTINGS, **SECURED) as broker:
        await broker.create("lines", partitions=1)
        await prepared(broker)
        assert (await beat(broker, 0, who=ALICE)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        await allow(broker, GROUP, "g", AclOperation.READ, AclOperation.DESCRIBE)
        await allow(broker, TOPIC, "lines", AclOperation.DESCRIBE)
        assert (await beat(broker, 0, who=ALICE)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for name in ("words", "counts"):
            await allow(broker, TOPIC, name, AclOperation.DESCRIBE)
        await allow(broker, TOPIC, "words", AclOperation.CREATE)
        response = await beat(broker, 0, who=ALICE)
        (status,) = response.status
        assert status.status_detail == (
            "Internal topics are missing: counts, words; Unauthorized to CREATE on topics counts."
        )
        await asyncio.sleep(0.05)
        assert "words" not in broker.node.metadata.topics
        await allow(broker, TOPIC, "counts", AclOperation.CREATE)
        while response.status:
            await asyncio.sleep(0.01)
            response = await beat(broker, response.member_epoch, who=ALICE)
        request = StreamsGroupDescribeRequest(group_ids=["g"])
        (group,) = (await broker.ask(request, 1, principal=ALICE)).groups
        assert (group.error_code, group.group_state) == (ErrorCode.NONE, "Stable")
        await allow(broker, TOPIC, "words", AclOperation.DESCRIBE, permission=2)
        (group,) = (await broker.ask(request, 1, principal=ALICE)).groups
        assert group.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED and not group.members


@in_loop
async def test_a_member_is_told_why_a_topic_was_not_created(memory_path: Path) -> None:
    strange = subtopology(
        "0", "lines", state_changelog_topics=[internal("counts", **{"cleanup.policy": "never"})]
    )
    async with begun(memory_path) as broker:
        await broker.create("lines", partitions=1)
        await prepared(broker)
        response = await beat(broker, 0, topology=topology(strange))
        while "Creation failed: counts (" not in response.status[0].status_detail:
            await asyncio.sleep(0.01)
            response = await beat(broker, response.member_epoch)
        assert "cleanup.policy" in response.status[0].status_detail


class ScriptedCreations:
    """Says what becomes of each creation, when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answer: asyncio.Future[list[TopicResult]] = asyncio.Future()

    async def create_topics(self, topics: Any) -> list[TopicResult]:
        self.asked.append([topic.name for topic in topics])
        return await self.answer


@in_loop
async def test_a_topic_is_created_once_and_what_failed_later() -> None:
    clock, controller = ManualClock(), ScriptedCreations()
    creation = StreamsInternalTopics(cast(Any, controller), clock)
    topics = [NewTopic(name="a"), NewTopic(name="b")]
    creation.create(topics, remember_ms=1_000)
    await asyncio.sleep(0)
    creation.create(topics, remember_ms=1_000)
    await asyncio.sleep(0)
    assert controller.asked == [["a", "b"]] and creation.errors(["a", "b"]) == {}
    failed = TopicResult(name="b", error=ErrorCode.INVALID_CONFIG, message="no such setting")
    controller.answer.set_result([TopicResult(name="a"), failed])
    await asyncio.sleep(0.01)
    assert creation.errors(["a", "b"]) == {"b": "no such setting"}
    creation.create(topics[1:], remember_ms=1_000)
    assert len(controller.asked) == 1
    clock.ms += 1_001
    assert creation.errors(["a", "b"]) == {}
    controller.answer = asyncio.Future()
    controller.answer.set_exception(KafkaError(ErrorCode.NOT_CONTROLLER))
    creation.create(topics, remember_ms=1_000)
    await asyncio.sleep(0.01)
    assert creation.errors(["a", "b"]) == {"a": "NOT_CONTROLLER", "b": "NOT_CONTROLLER"}
    creation.stop()
