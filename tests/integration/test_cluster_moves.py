"""Several brokers in one event loop: leaders that are elected and replicas that move, asked for through any broker."""

from pathlib import Path

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    DescribeClusterRequest,
    DescribeQuorumRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from kafka_ds.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)
from kafka_ds.protocol.messages.quorum import (
    FeatureUpdateKey,
)
from kafka_ds.protocol.messages.replicas import (
    ReassignableTopic,
)
from tests.in_process import Cluster, InProcess, batch_of, in_process_cluster, values_of
from tests.integration.cluster_admin import create, elect, partition
from tests.loops import in_loop
from tests.requests import build


def in_sync(cluster: Cluster, index: int = 0) -> set[int]:
    return set(partition(cluster.controller, index).isr)


async def reassign(broker: InProcess, replicas: list[int] | None) -> int:
    topics = [build(ReassignableTopic, name="t", partition_index=0, replicas=replicas)]
    answer = await broker.ask(AlterPartitionReassignmentsRequest(topics=topics), 1)
    assert answer.error_code == ErrorCode.NONE
    code: int = answer.responses[0].partitions[0].error_code
    return code


@in_loop
async def test_the_preferred_leader_leads_again_when_it_is_asked_for(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        first = cluster.others[0].node.config.node_id
        second = cluster.controller.node.config.node_id
        await create(cluster, [first, second])
        await cluster.stop(first)
        assert partition(cluster.controller).leader == second
        await cluster.start(first)
        await cluster.until("its return", lambda: in_sync(cluster) == {first, second})
        asked = cluster.nodes[first]
        assert await elect(asked, 0, 0, 7) == {
            0: ErrorCode.NONE,
            7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert partition(cluster.controller).leader == first
        assert await elect(asked, 0, 0) == {0: ErrorCode.ELECTION_NOT_NEEDED}
        assert await elect(asked, 0) == {}


@in_loop
async def test_a_partition_moves_with_all_that_is_in_it(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        await create(cluster, [1])
        for number in range(5):
            answer = await cluster.nodes[1].produce("t", batch_of([b"%d" % number]))
            assert answer.error_code == ErrorCode.NONE
        epoch = partition(cluster.controller).leader_epoch
        assert await reassign(cluster.others[0], [2, 3]) == ErrorCode.NONE
        await cluster.until(
            "the end of the move",
            lambda: partition(cluster.controller).replicas == (2, 3) and in_sync(cluster) == {2, 3},
        )
        now = partition(cluster.controller)
        assert (now.leader, now.adding_replicas, now.removing_replicas) == (2, (), ())
        assert now.leader_epoch > epoch
        await cluster.until("its leader", lambda: partition(cluster.nodes[2]) == now)
        data = await cluster.nodes[2].fetch("t", 0)
        assert values_of(data.records) == [b"0", b"1", b"2", b"3", b"4"]
        answer = await cluster.nodes[2].produce("t", batch_of([b"5"]))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 5)
        assert (await cluster.nodes[1].fetch("t", 0)).error_code == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        )


@in_loop
async def test_a_move_that_cannot_end_is_told_and_cancelled(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        away = cluster.others[0].node.config.node_id
        here = cluster.controller.node.config.node_id
        await create(cluster, [here])
        await cluster.stop(away)
        asked = cluster.others[0]
        assert await reassign(asked, [away]) == ErrorCode.NONE
        listed = await asked.ask(ListPartitionReassignmentsRequest(topics=None), 0)
        (move,) = listed.topics[0].partitions
        assert (listed.topics[0].name, move.partition_index) == ("t", 0)
        assert (move.replicas, move.adding_replicas, move.removing_replicas) == (
            [away, here],
            [away],
            [here],
        )
        assert await reassign(asked, None) == ErrorCode.NONE
        assert await reassign(asked, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        listed = await asked.ask(ListPartitionReassignmentsRequest(topics=None), 0)
        assert listed.topics == []
        assert partition(cluster.controller).replicas == (here,)


@in_loop
async def test_everybody_tells_who_decides_who_follows_and_who_is_fenced(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        controller = cluster.controller.node.config.node_id
        request = build(DescribeQuorumRequest, topic_name="__cluster_metadata", partition_index=0)
        others = sorted(set(cluster.nodes) - {controller})
        for broker in cluster.nodes.values():
            answer = await broker.ask(request, 2)
            (told,) = answer.topics[0].partitions
            assert (told.leader_id, [each.node_id for each in answer.nodes]) == (
                controller,
                [controller],
            )
            assert [each.replica_id for each in told.current_voters] == [controller]
            assert [each.replica_id for each in told.observers] == others
            assert all(0 < o.log_end_offset <= told.high_watermark for o in told.observers)
        stopped = others[0]
        await cluster.stop(stopped)
        asked = cluster.others[0]
        await cluster.until("it is known", lambda: asked.node.metadata.brokers[stopped].fenced)
        for include, known in ((True, [1, 2, 3]), (False, sorted(set(cluster.nodes)))):
            brokers = DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=include
            )
            answer = await asked.ask(brokers, 2)
            assert [each.broker_id for each in answer.brokers] == known
            assert [b.broker_id for b in answer.brokers if b.is_fenced] == (
                [stopped] if include else []
            )


@in_loop
async def test_a_broker_is_set_through_itself_or_any_other(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        for number, broker in enumerate([*cluster.others, cluster.controller]):
            for node_id in (1, 2):
                value = str(70_000 + 10 * number + node_id)
                answer = await broker.ask(set_broker(node_id, "log.retention.ms", value), 1)
                assert answer.responses[0].error_code == ErrorCode.NONE
                changed = cluster.nodes[node_id]
                await cluster.until(
                    "the setting",
                    lambda b=changed, v=value: str(b.node.config.topic.retention_ms) == v,  # type: ignore[misc]
                )
            answer = await broker.ask(set_broker(2, "log.retention.ms", "often"), 1)
            assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
            answer = await broker.ask(set_broker(3, "log.retention.ms", "1"), 1)
            assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_each_broker_judges_its_own_settings_by_its_own_file(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 1) as cluster:
        await cluster.start(2, log_cleaner_min_compaction_lag_ms=5_000)
        for broker in cluster.nodes.values():
            answer = await broker.ask(set_broker(2, "log.cleaner.max.compaction.lag.ms", "4000"), 1)
            assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
            assert "min.compaction.lag.ms" in answer.responses[0].error_message
            everybody = set_broker("", "log.cleaner.max.compaction.lag.ms", "4000")
            answer = await broker.ask(everybody, 1)
            assert answer.responses[0].error_message.startswith("broker 2: ")
            answer = await broker.ask(set_broker(1, "log.cleaner.max.compaction.lag.ms", "4000"), 1)
            assert answer.responses[0].error_code == ErrorCode.NONE
        second = cluster.nodes[2].node
        assert second.config.topic.max_compaction_lag_ms > 9_000
        answer = await cluster.nodes[1].ask(
            set_broker(2, "log.cleaner.min.compaction.lag.ms", "3000"), 1
        )
        assert answer.responses[0].error_code == ErrorCode.NONE
        answer = await cluster.nodes[1].ask(
            set_broker(2, "log.cleaner.max.compaction.lag.ms", "4000"), 1
        )
        assert answer.responses[0].error_code == ErrorCode.NONE, answer
        await cluster.until(
            "the setting", lambda: second.config.topic.max_compaction_lag_ms == 4_000
        )


def set_broker(node_id: int | str, name: str, value: str) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterableConfig(name=name, config_operation=0, value=value)
    resource = IncrementalAlterConfigsResource(
        resource_type=4, resource_name=str(node_id), configs=[config]
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


@in_loop
async def test_a_level_of_a_feature_is_the_whole_clusters(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        name = "eligible.leader.replicas.version"
        lower = FeatureUpdateKey(feature=name, max_version_level=0, upgrade_type=2)
        (other,) = cluster.others
        for version in (1, 2):
            only = UpdateFeaturesRequest(feature_updates=[lower], validate_only=True)
            assert (await other.ask(only, version)).error_code == ErrorCode.NONE
            assert other.node.metadata.features == {}
        unknown = FeatureUpdateKey(feature="unheard.of", max_version_level=1)
        both = UpdateFeaturesRequest(feature_updates=[lower, unknown])
        assert (await other.ask(both, 2)).error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert other.node.metadata.features == {}
        answer = await other.ask(UpdateFeaturesRequest(feature_updates=[lower]), 2)
        assert answer.error_code == ErrorCode.NONE
        await cluster.until(
            "the level everywhere",
            lambda: all(
                each.node.metadata.features == {name: 0} for each in cluster.nodes.values()
            ),
        )
