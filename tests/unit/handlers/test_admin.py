"""What tools ask of a cluster: log directories, elections, moves, the quorum, features, pages of topics."""

from pathlib import Path
from typing import Any

import pytest

from broker.log.directories.metrics import CORDONED_DIRECTORIES, log_samples
from broker.metadata import features
from broker.metadata.features import Feature
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from kafka_ds.protocol.messages.quorum import (
    DescribeQuorumRequestPartitionData,
    FeatureUpdateKey,
)
from kafka_ds.protocol.messages.replicas import (
    DescribableLogDirTopic,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from tests.in_process import InProcess, batch_of, in_process
from tests.loops import in_loop, until
from tests.requests import build
from tests.unit.handlers.config_requests import BROKER, SET, change


@pytest.mark.parametrize("version", range(1, 6))
@in_loop
async def test_log_directories(memory_path: Path, version: int) -> None:
    folders = [memory_path / "a", memory_path / "b"]
    async with in_process(memory_path, log_dirs=",".join(map(str, folders))) as broker:
        await broker.create("t", 2)
        batch = batch_of([b"x" * 100])
        await broker.produce("t", batch, partition=1)
        response = await broker.ask(DescribeLogDirsRequest(topics=None), version)
        assert [result.log_dir for result in response.results] == [str(f) for f in folders]
        sizes = {
            (topic.name, each.partition_index): (each.partition_size, each.offset_lag)
            for result in response.results
            for topic in result.topics
            for each in topic.partitions
        }
        assert sizes == {("t", 0): (0, 0), ("t", 1): (len(batch), 0)}
        for result in response.results:
            assert len(result.topics) == 1, "partitions are spread over directories"
            if version >= 4:
                assert result.total_bytes >= result.usable_bytes > 0
        wanted = [DescribableLogDirTopic(topic="t", partitions=[1, 9])]
        some = await broker.ask(DescribeLogDirsRequest(topics=wanted), version)
        assert sum(len(result.topics) for result in some.results) == 1


@in_loop
async def test_cordoned_directories_get_no_new_replicas(memory_path: Path) -> None:
    """KIP-1066."""
    one, two = str(memory_path / "a"), str(memory_path / "b")
    settings = {"log_dirs": f"{one},{two}", "cordoned_log_dirs": one}
    async with in_process(memory_path, **settings, broker_heartbeat_interval_ms=10) as broker:

        async def cordoned() -> dict[str, bool]:
            response = await broker.ask(DescribeLogDirsRequest(topics=None), 5)
            return {each.log_dir: each.is_cordoned for each in response.results}

        async def moved_to(path: str) -> int:
            request = build(AlterReplicaLogDirsRequest, path=path, name="t", partitions=[0])
            code: int = (await broker.ask(request, 2)).results[0].partitions[0].error_code
            return code

        async def cordon(name: str, value: str) -> str | None:
            told = await change(broker, BROKER, name, ("cordoned.log.dirs", SET, value))
            message: str | None = told.error_message
            return message

        assert await cordoned() == {one: True, two: False}
        await broker.create("t", 3)
        homes = [log.directory.rpartition("/")[0] for log in broker.node.log_manager.logs()]
        assert homes == [two] * 3
        assert await moved_to(one) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "Missing entries : /c" in str(await cordon("", f"{one},/c"))
        assert "must not contain other values" in str(await cordon("1", f"{one},*"))
        assert await cordon("1", "*") is None
        assert await cordoned() == {one: True, two: True}
        samples = {each: value for each, _, value in log_samples(broker.node.log_manager)}
        assert samples[CORDONED_DIRECTORIES] == 2
        me = broker.node.metadata.brokers
        await until(lambda: not me[1].has_uncordoned_dirs)
        refused = build(CreateTopicsRequest, name="n", num_partitions=1, replication_factor=1)
        (answer,) = (await broker.ask(refused, 7)).topics
        assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert await cordon("1", "") is None
        await until(lambda: me[1].has_uncordoned_dirs)
        assert await moved_to(one) == ErrorCode.NONE


@pytest.mark.parametrize("version", range(3))
@in_loop
async def test_no_election_is_needed(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        wanted = [TopicPartitions(topic="t", partitions=[0, 1])]
        response = await broker.ask(ElectLeadersRequest(topic_partitions=wanted), version)
        (result,) = response.replica_election_results
        assert [each.error_code for each in result.partition_result] == [
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        response = await broker.ask(ElectLeadersRequest(topic_partitions=None), version)
        assert (response.error_code, response.replica_election_results) == (0, [])


@in_loop
async def test_an_unknown_kind_of_election(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        response = await broker.ask(ElectLeadersRequest(topic_partitions=None, election_type=5), 2)
        assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(2))
@in_loop
async def test_nothing_moves(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", 5)
        wanted: list[list[int] | None] = [None, [1], [2], [], [1, 1], [1]]
        partitions = [
            ReassignablePartition(partition_index=index, replicas=replicas)
            for index, replicas in enumerate(wanted)
        ]
        topics = [ReassignableTopic(name="t", partitions=partitions)]
        response = await broker.ask(AlterPartitionReassignmentsRequest(topics=topics), version)
        assert [each.error_code for each in response.responses[0].partitions] == [
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        listed = await broker.ask(ListPartitionReassignmentsRequest(topics=None), 0)
        assert (listed.error_code, listed.topics) == (0, [])


@pytest.mark.parametrize("version", range(3))
@in_loop
async def test_a_quorum_of_one(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        partitions = [DescribeQuorumRequestPartitionData(partition_index=i) for i in (0, 1)]
        request = build(
            DescribeQuorumRequest, topic_name="__cluster_metadata", partitions=partitions
        )
        before = (await broker.ask(request, version)).topics[0].partitions[0]
        await broker.create("t")
        response = await broker.ask(request, version)
        found, other = response.topics[0].partitions
        assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (found.error_code, found.leader_id, found.observers) == (0, 1, [])
        assert found.leader_epoch == broker.node.metadata.controller_epoch >= 1
        assert found.high_watermark == before.high_watermark + 1
        (voter,) = found.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (1, found.high_watermark)
        if version >= 2:
            host, port = broker.owner.bound_address
            (node,) = response.nodes
            assert [(each.host, each.port) for each in node.listeners] == [(host, port)]


async def update(broker: InProcess, version: int, *levels: tuple[str, int]) -> Any:
    updates = [FeatureUpdateKey(feature=n, max_version_level=level) for n, level in levels]
    return await broker.ask(UpdateFeaturesRequest(feature_updates=updates), version)


@pytest.mark.parametrize("version", range(3))
@in_loop
async def test_features_stay_at_their_levels(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        name, feature = next(iter(features.FEATURES.items()))
        fine = await update(broker, version, (name, feature.level))
        assert fine.error_code == ErrorCode.NONE
        levels = ((name, feature.level), (name + ".x", 1), ("metadata.version", 99))
        refused = await update(broker, version, *levels)
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert name in refused.error_message and refused.results == []
        for wanted, words in (
            (("group.version", 9), "the levels of group.version are 0 to 1"),
            (("transaction.version", 1), "transaction.version is at level 2, the only one"),
            (("kraft.version", 0), "kraft.version is at level 1, the only one"),
        ):
            refused = await update(broker, version, wanted)
            assert words in refused.error_message
        assert not (await update(broker, version, ("kraft.version", 1))).error_code
        # Tools tell by it which Kafka a cluster is.
        assert not (await update(broker, version, ("metadata.version", 33))).error_code
        twice = await update(broker, version, (name, 0), (name, 0))
        assert twice.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [3, 4])
@in_loop
async def test_api_versions_tells_features(
    memory_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "broker.handlers.cluster.api_versions.FEATURES",
        {
            "a": Feature(lowest=0, highest=2, level=2),
            "b": Feature(lowest=0, highest=1, level=0),
            "c": Feature(lowest=1, highest=3, level=0),
        },
    )
    async with in_process(memory_path) as broker:
        request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        response = await broker.ask(request, version)
        told = [(f.name, f.min_version, f.max_version) for f in response.supported_features]
        from_0 = [("a", 0, 2), ("b", 0, 1)]
        assert told == [*(from_0 if version >= 4 else []), ("c", 1, 3)]
        (agreed,) = response.finalized_features
        assert (agreed.name, agreed.max_version_level) == ("a", 2)
        assert response.finalized_features_epoch == broker.node.metadata.version


async def pages(broker: InProcess, names: list[str], limit: int) -> list[list[tuple[str, int]]]:
    found: list[list[tuple[str, int]]] = []
    cursor = None
    while cursor is not None or not found:
        request = build(
            DescribeTopicPartitionsRequest,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        response = await broker.ask(request, 0)
        assert [t.error_code for t in response.topics] == [0] * len(response.topics)
        found.append([(t.name, p.partition_index) for t in response.topics for p in t.partitions])
        cursor = response.next_cursor
    return found


@in_loop
async def test_topics_come_in_pages(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("b", 3)
        await broker.create("a", 2)
        await broker.create("c", 1)
        everything = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
        for limit in range(1, 8):
            split = await pages(broker, [], limit)
            assert [each for page in split for each in page] == everything
            assert all(len(page) == limit for page in split[:-1])
            assert len(split) == -(-len(everything) // limit)
        assert await pages(broker, ["c", "a"], 2) == [[("a", 0), ("a", 1)], [("c", 0)]]
        request = build(
            DescribeTopicPartitionsRequest, topics=[{"name": n} for n in ("b", "none", "a/b")]
        )
        refused, b, none = (await broker.ask(request, 0)).topics
        assert (b.name, b.topic_id, b.error_code) == ("b", topic_id, 0)
        first = b.partitions[0]
        assert (first.leader_id, first.replica_nodes, first.isr_nodes) == (1, [1], [1])
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert none.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("cursor", "count"), [(("b", 1), 2), (("b", 9), 1), (("aa", 0), 4), (("z", 0), 0)]
)
@in_loop
async def test_a_cursor_whose_place_is_gone(
    memory_path: Path, cursor: tuple[str, int], count: int
) -> None:
    """Topics may come, go and shrink between two pages."""
    async with in_process(memory_path) as broker:
        await broker.create("b", 2)
        await broker.create("c", 1)
        await broker.create("a", 1)
        await broker.create("aa", 1)
        request = build(
            DescribeTopicPartitionsRequest, topic_name=cursor[0], partition_index=cursor[1]
        )
        response = await broker.ask(request, 0)
        assert sum(len(topic.partitions) for topic in response.topics) == count


@in_loop
async def test_pages_that_cannot_be(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("b", 2)
        request = build(DescribeTopicPartitionsRequest, response_partition_limit=-1)
        (topic,) = (await broker.ask(request, 0)).topics
        assert len(topic.partitions) == 1, "a limit below 1 is 1"
        for name, partition in (("b", -1), ("c", 0)):
            request = build(
                DescribeTopicPartitionsRequest,
                topics=[{"name": "b"}],
                cursor={"topic_name": name, "partition_index": partition},
            )
            (topic,) = (await broker.ask(request, 0)).topics
            assert topic.error_code == ErrorCode.INVALID_REQUEST
