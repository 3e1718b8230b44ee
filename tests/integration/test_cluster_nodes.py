"""Several brokers in one event loop, on one lake, over real sockets: who decides, who follows, who leads."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.membership.lease import LEASE_PATH, decode_lease
from broker.membership.member import ClusterMember
from broker.replica.replica_manager import ReplicaManager
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.settings import MAX_LONG, ConfigError
from kafka_ds.process.system import new_uuid
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    AllocateProducerIdsRequest,
    ApiVersionsRequest,
    ControllerLivenessRequest,
    DescribeClusterRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ReadMetadataRequest,
    UnregisterBrokerRequest,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.topic.names import CLUSTER_MARK
from tests.in_process import (
    Cluster,
    InProcess,
    batch_of,
    in_process,
    in_process_cluster,
    new_node,
)
from tests.loops import in_loop
from tests.requests import build


def leaders(broker: InProcess, topic: str) -> dict[int, int]:
    found = broker.node.metadata.topics.get(topic)
    return {index: each.leader for index, each in found.partitions.items()} if found else {}


async def everywhere(cluster: Cluster, what: str, holds: Callable[[InProcess], bool]) -> None:
    await cluster.until(what, lambda: all(map(holds, cluster.nodes.values())))


@in_loop
async def test_one_of_several_decides_and_all_know_it(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        controller = cluster.controller.node.config.node_id
        assert len(cluster.others) == 2
        for broker in cluster.nodes.values():
            await cluster.until("three brokers", lambda b=broker: len(active(b)) == 3)  # type: ignore[misc]
            answer = await broker.ask(MetadataRequest(topics=[]), 12)
            assert answer.controller_id == controller
            assert [each.node_id for each in answer.brokers] == [1, 2, 3]
            described = await broker.ask(
                DescribeClusterRequest(include_cluster_authorized_operations=False), 2
            )
            assert described.controller_id == controller
            assert {each.port for each in described.brokers} == {
                each.owner.bound_address[1] for each in cluster.nodes.values()
            }


def active(broker: InProcess) -> list[int]:
    return [each.broker_id for each in broker.node.metadata.brokers.values() if each.is_active]


@in_loop
async def test_a_topic_is_made_through_any_broker_and_led_by_all(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        for number, broker in enumerate([*cluster.others, cluster.controller]):
            await broker.create(f"t{number}", 6)
        for name in ("t0", "t1", "t2"):
            await everywhere(cluster, name, lambda b, name=name: len(leaders(b, name)) == 6)  # type: ignore[misc]
            spread = leaders(cluster.controller, name)
            assert sorted(spread.values()) == [1, 1, 2, 2, 3, 3]
            for index, leader in spread.items():
                for node_id, broker in cluster.nodes.items():
                    answer = await broker.produce(name, batch_of([b"v"]), partition=index)
                    led = node_id == leader
                    assert answer.error_code == (
                        ErrorCode.NONE if led else ErrorCode.NOT_LEADER_OR_FOLLOWER
                    )


@in_loop
async def test_a_topic_that_a_client_asks_for_is_made_by_the_controller(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        (other,) = cluster.others
        request = build(MetadataRequest, topics=[{"name": "asked"}])
        answer = await other.ask(request, 12)
        assert answer.topics[0].error_code == ErrorCode.NONE
        assert answer.topics[0].partitions[0].leader_id in (1, 2)


@in_loop
async def test_producer_ids_of_several_brokers_are_different(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answers = await asyncio.gather(
            *(broker.ask(request, 4) for broker in cluster.nodes.values() for _ in range(10))
        )
        assert all(answer.error_code == ErrorCode.NONE for answer in answers)
        assert len({answer.producer_id for answer in answers}) == 30
        stale = AllocateProducerIdsRequest(broker_id=1, broker_epoch=12345)
        refused = await cluster.controller.ask(stale, 0)
        assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH


@in_loop
async def test_what_brokers_ask_each_other_is_no_clients_business(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        (other,) = cluster.others
        request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        answer = await other.ask(request, 3)
        keys = {each.api_key for each in answer.api_keys}
        assert keys.isdisjoint({56, 58, 62, 63, 67, 73, 20_000, 20_001})
        assert 64 in keys
        read = ReadMetadataRequest(
            broker_id=9, controller_epoch=0, after_version=0, max_wait_ms=0, max_bytes=1
        )
        assert (await other.ask(read, 0)).error_code == ErrorCode.NOT_CONTROLLER
        image = other.node.metadata
        for broker in cluster.nodes.values():
            liveness = ControllerLivenessRequest(
                asking_id=9,
                controller_id=image.controller_id,
                controller_epoch=image.controller_epoch,
            )
            answer = await broker.ask(liveness, 0)
            assert 0 <= answer.last_heard_ms < 10_000
            assert answer.incarnation_id == broker.node.member.lifecycle.identity.incarnation_id
            liveness.controller_epoch += 1
            assert (await broker.ask(liveness, 0)).last_heard_ms == -1


@in_loop
async def test_a_broker_that_crashed_comes_back_within_its_session(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2, broker_session_timeout_ms=4_000) as cluster:
        (other,) = cluster.others
        node_id = other.node.config.node_id
        before = other.node.member.lifecycle.identity.incarnation_id
        await other.cut_off()
        # Its folder stays locked within this process.
        again = await cluster.start(node_id, log_dirs=tmp_path / "again")
        assert before != again.node.member.lifecycle.identity.incarnation_id
        await other.owner.stop()


@in_loop
async def test_a_broker_that_stops_hands_over_and_comes_back(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        await cluster.controller.create("t", 6)
        stopping = cluster.others[0].node.config.node_id
        await cluster.stop(stopping)
        image = cluster.controller.node.metadata
        assert image.brokers[stopping].fenced
        assert stopping not in leaders(cluster.controller, "t").values()
        epoch = image.brokers[stopping].broker_epoch
        await cluster.start(stopping)
        await everywhere(
            cluster, "its return", lambda b: not b.node.metadata.brokers[stopping].fenced
        )
        assert image.brokers[stopping].broker_epoch > epoch
        await everywhere(cluster, "its leaders", lambda b: -1 not in leaders(b, "t").values())
        assert {each.leader_recovery_state for each in image.topics["t"].partitions.values()} == {0}


@in_loop
async def test_a_controller_that_stops_lets_another_one_decide_at_once(tmp_path: Path) -> None:
    # With a session this long nobody could have waited for its end.
    async with in_process_cluster(tmp_path, 3, broker_session_timeout_ms=100_000) as cluster:
        first = cluster.controller.node.config.node_id
        await cluster.stop(first)
        await cluster.until(
            "another controller", lambda: any(is_active(b) for b in cluster.nodes.values())
        )
        await cluster.controller.create("after")
        again = await cluster.start(first)
        assert not is_active(again)
        assert "after" in again.node.metadata.topics


def is_active(broker: InProcess) -> bool:
    return broker.node.metadata_driver.is_active


@in_loop
async def test_a_controller_that_dies_is_replaced_and_fenced_in_one_commit(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        await cluster.controller.create("t", 30)
        await everywhere(cluster, "t", lambda b: len(leaders(b, "t")) == 30)
        dead = cluster.controller
        dead_id = dead.node.config.node_id
        epoch, before = dead.node.metadata.controller_epoch, dead.node.metadata.version
        others = cluster.others
        await dead.cut_off()
        await cluster.until("another controller", lambda: any(is_active(b) for b in others))
        (new,) = [b for b in others if is_active(b)]
        assert new.node.metadata.controller_epoch == epoch + 1
        assert new.node.metadata.brokers[dead_id].fenced
        assert dead_id not in leaders(new, "t").values()
        changes = [
            entry
            for entry in new.node.metadata_driver.entries_after(before, 1 << 30) or []
            if any(type(event).__name__ == "FenceBroker" for event in entry.events)
        ]
        (commit,) = changes
        assert sum(type(e).__name__ == "PartitionChanged" for e in commit.events) == 10
        assert any(type(e).__name__ == "ControllerChange" for e in commit.events)


@in_loop
async def test_a_broker_that_dies_is_fenced_in_one_commit(tmp_path: Path) -> None:
    # Opening a thousand logs takes one process its time: a short session would end meanwhile.
    async with in_process_cluster(tmp_path, 3, broker_session_timeout_ms=15_000) as cluster:
        await cluster.controller.create("t", 1_000)
        await everywhere(cluster, "t", lambda b: len(leaders(b, "t")) == 1_000)
        controller = cluster.controller.node
        before = controller.metadata.version
        dead = cluster.others[0]
        dead_id = dead.node.config.node_id
        led = [i for i, leader in leaders(cluster.controller, "t").items() if leader == dead_id]
        assert len(led) > 300
        await dead.cut_off()
        await cluster.until("its end", lambda: controller.metadata.brokers[dead_id].fenced)
        (commit,) = [
            entry
            for entry in controller.metadata_driver.entries_after(before, 1 << 30) or []
            if any(type(event).__name__ == "FenceBroker" for event in entry.events)
        ]
        changed = {e.partition for e in commit.events if type(e).__name__ == "PartitionChanged"}  # type: ignore[attr-defined]
        assert changed == set(led)


@in_loop
async def test_a_controller_that_is_only_cut_off_from_one_broker_stays(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 3) as cluster:
        controller = cluster.controller
        epoch = controller.node.metadata.controller_epoch
        lonely = cluster.others[0].node
        asked: list[int] = []
        query_peers = lonely.member.candidacy.query_peers

        async def noted() -> list[int]:
            answers = await query_peers()
            asked.extend(answers)
            return answers

        lonely.member.candidacy.query_peers = noted  # type: ignore[method-assign]
        # Neither the wire nor the lease tells this broker of its controller; everybody else is well.
        lonely.member.candidacy.heard = lambda _: None  # type: ignore[method-assign]
        lonely.member.candidacy.look = nothing  # type: ignore[method-assign]
        await cluster.until("the question to the others", lambda: len(asked) >= 3)
        assert all(0 <= each < 1_000 for each in asked)
        assert is_active(controller)
        assert controller.node.metadata.controller_epoch == epoch


@pytest.mark.parametrize("hangs", [False, True])
@in_loop
async def test_a_controller_that_alone_has_lost_the_store_is_replaced_and_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    is_back = threading.Event()

    def away(*_: object, **__: object) -> None:
        if hangs:
            is_back.wait()
        raise OSError("the store is away")

    async with in_process_cluster(tmp_path, 3) as cluster:
        old = cluster.controller
        old_id = old.node.config.node_id
        await old.create("before", 3)
        try:
            for name in ("read", "put_if_absent", "put_durable", "list", "size"):
                monkeypatch.setattr(old.node.store, name, away)
            others = [each for each in cluster.nodes.values() if each is not old]
            await cluster.until("another one", lambda: any(map(is_active, others)))
            new = next(filter(is_active, others))
            await cluster.until("it to resign", lambda: not is_active(old))
            # What it hears now it hears by wire alone.
            await new.create("after")
            await everywhere(cluster, "the new topic", lambda each: bool(leaders(each, "after")))
            assert not new.node.metadata.brokers[old_id].fenced
        finally:
            is_back.set()
            monkeypatch.undo()


async def nothing() -> None:
    """What a broker sees of a lease that it cannot read."""


@pytest.mark.parametrize("lease", ["its own", "of a claim that was lost"])
@in_loop
async def test_a_second_process_of_one_number_is_refused(
    tmp_path: Path, lease: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, object] = {"initial_broker_registration_timeout_ms": 700}
    settings["controller_lease_interval_ms"] = 14_000 if lease != "its own" else 200
    # On a machine that runs none of them for so long each would be taken for dead, and its twin let in.
    settings["broker_session_timeout_ms"] = 15_000
    async with in_process_cluster(tmp_path, 2, **settings) as cluster:
        controller, other = cluster.controller.node, cluster.others[0].node
        if lease != "its own":
            # Both claimed at the start: the lease of who lost lies over the other's until that is written again.
            path = tmp_path / "lake" / LEASE_PATH
            written = decode_lease(path.read_bytes())
            assert written is not None
            lost = replace(written, controller_id=other.config.node_id, sequence=1, port=1)
            path.write_bytes(lost.encode())
        for node, words in (
            (controller, "by the active controller"),
            (other, "by the broker at"),
        ):
            twin_dirs = tmp_path / f"twin-{node.config.node_id}"
            with pytest.raises(ConfigError, match=rf"node.id={node.config.node_id}.*{words}"):
                await cluster.start(node.config.node_id, log_dirs=twin_dirs)
        assert controller.metadata_driver.is_active
        assert "run `kafka-ds restore`" not in caplog.text
        # Its folders are nobody's: with the number that was meant they are taken.
        third = await cluster.start(3, log_dirs=twin_dirs)
        assert third.node.member.lifecycle.broker_epoch >= 0
        assert (twin_dirs / "meta.properties").exists()
        await cluster.controller.create("t", 2)


@in_loop
async def test_a_lake_that_is_empty_is_not_taken_for_the_cluster_of_the_disks(
    tmp_path: Path,
) -> None:
    async with in_process(tmp_path) as broker:
        await broker.create("a")
    node = new_node(tmp_path, lake_uri=tmp_path / "mount point")
    with pytest.raises(ConfigError, match="holds no cluster.* is the lake's folder mounted"):
        await node.start()
    # Workers of other brokers on this machine would take it for the lake.
    assert not (tmp_path / "mount point" / CLUSTER_MARK).exists()


@pytest.mark.parametrize("beats_ms", [100, 60_000])
@in_loop
async def test_a_process_whose_number_another_one_has_taken_stops(
    tmp_path: Path, beats_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may see that before its next heartbeat: then it does not claim its former place either."""
    settings = {"broker_heartbeat_interval_ms": beats_ms, "broker_session_timeout_ms": 120_000}
    async with in_process_cluster(tmp_path, 1, **settings) as cluster:
        old = cluster.nodes[1]
        await old.create("t")
        # Nothing tells of the first one: no lease, and no answer; and so the second one goes on.
        monkeypatch.setattr(old.node.member.candidacy, "last_heard_ms", lambda *_: -1)
        LocalStore(str(tmp_path / "lake")).delete(LEASE_PATH)
        old.node.member.candidacy.write_lease = nothing_written  # type: ignore[method-assign]
        LocalStore(str(tmp_path / "lake")).delete(LEASE_PATH)
        new = await cluster.start(1, log_dirs=tmp_path / "other")
        try:
            error = await asyncio.wait_for(old.owner.failed, 120)
            assert "another broker with this node.id has registered" in str(error)
            # What it still asks for is not asked for by the other one.
            with pytest.raises(KafkaError) as refused:
                await old.node.member.requests.allocate_producer_ids()
            assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
            answer = await old.produce("t", batch_of([b"a"]))
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert is_active(new)
        finally:
            await old.owner.stop()


@in_loop
async def test_a_process_whose_number_is_taken_before_it_has_begun_never_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fetch in the other one's epoch, and leaders would take its log for that one's (KIP-903)."""
    join, begun = ClusterMember.join, []

    async def joined(member: ClusterMember) -> None:
        await join(member)
        driver = member.driver
        await driver.decide(lambda controller: controller.expire_sessions(MAX_LONG))
        await driver.decide(
            lambda controller: controller.register_broker(
                1,
                incarnation_id=new_uuid(),
                endpoints=member.lifecycle.identity.endpoints,
                rack=None,
                previous_broker_epoch=-1,
            )
        )

    async def begin(_: ReplicaManager) -> None:
        begun.append(True)

    monkeypatch.setattr(ClusterMember, "join", joined)
    monkeypatch.setattr(ReplicaManager, "start", begin)
    with pytest.raises(ConfigError, match="another broker with this node.id has registered"):
        await new_node(tmp_path).start()
    assert not begun


@in_loop
async def test_a_process_whose_number_another_one_has_taken_stops_in_order(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        (old,) = cluster.others
        number = old.node.config.node_id
        await old.create("t", 2)
        # It is silent for a session, and meanwhile its place is taken.
        old.node.member.tasks["heartbeats"].cancel()
        image = cluster.controller.node.metadata
        await cluster.until("its session's end", lambda: image.brokers[number].fenced)
        await cluster.start(number, log_dirs=tmp_path / "other")
        await cluster.until("its fate", lambda: old.node.member.lifecycle.has_a_successor)
        await old.owner.stop()
        await is_over(old)


@in_loop
async def test_a_broker_that_cannot_hand_over_stops_all_the_same(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        (other,) = cluster.others
        number = other.node.config.node_id
        lifecycle = other.node.member.lifecycle
        lifecycle.shut_down = taken_meanwhile  # type: ignore[method-assign]
        await cluster.stop(number)
        await is_over(other)


async def taken_meanwhile() -> None:
    """A controlled shutdown during which another process registers with the same node.id."""
    raise ConfigError("another broker with this node.id has registered; shutting down")


async def is_over(broker: InProcess) -> None:
    """Nothing is served any more, and the logs are closed."""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*broker.owner.bound_address)
    for directory in broker.node.config.log_dirs:
        assert (Path(directory) / ".kafka_cleanshutdown").exists()


async def nothing_written(*_: Any, **__: Any) -> None:
    """Replaces the lease's write: the controller's lease never reaches the store."""


@in_loop
async def test_a_broker_that_was_unregistered_registers_again(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        (other,) = cluster.others
        other_id = other.node.config.node_id
        epoch = other.node.metadata.brokers[other_id].broker_epoch
        answer = await other.ask(UnregisterBrokerRequest(broker_id=77), 0)
        assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        answer = await other.ask(UnregisterBrokerRequest(broker_id=other_id), 0)
        assert answer.error_code == ErrorCode.NONE
        image = cluster.controller.node.metadata
        await cluster.until(
            "its return", lambda: other_id in image.brokers and not image.brokers[other_id].fenced
        )
        assert image.brokers[other_id].broker_epoch > epoch


@in_loop
async def test_a_directory_that_failed_is_told_to_the_controller(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2) as cluster:
        (other,) = cluster.others
        other_id = other.node.config.node_id
        dirs = f"{tmp_path / 'one'},{tmp_path / 'two'}"
        await cluster.stop(other_id)
        broker = await cluster.start(other_id, log_dirs=dirs)
        await cluster.controller.create("t", 8)
        await everywhere(cluster, "t", lambda b: len(leaders(b, "t")) == 8)
        manager = broker.node.log_manager
        failed = manager.directory_ids[str(tmp_path / "one")]
        lost = [i for i in range(8) if manager.directory_id_of(TopicPartition("t", i)) == failed
                and leaders(broker, "t")[i] == other_id]  # fmt: skip
        kept = [i for i in range(8) if leaders(broker, "t")[i] == other_id and i not in lost]
        assert lost and kept
        # The controller has to know first where the replicas are.
        image = cluster.controller.node.metadata
        await cluster.until(
            "their directories",
            lambda: (
                failed in {d for i in lost for d in image.topics["t"].partitions[i].directories}
            ),
        )
        (directory,) = [d for d in manager.directories.online if d.directory_id == failed]
        manager.fail(directory, OSError("broken"))
        await cluster.until(
            "leaders that go", lambda: all(leaders(cluster.controller, "t")[i] == -1 for i in lost)
        )
        assert all(leaders(cluster.controller, "t")[i] == other_id for i in kept)
        assert failed not in image.brokers[other_id].log_dirs
