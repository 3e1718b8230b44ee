"""ApiVersions, DescribeCluster, DescribeConfigs, FindCoordinator, InitProducerId; restarts clean and unclean."""

import asyncio
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.cluster.api_versions import CLIENT_METRICS_KEYS
from broker.log.values import RemoteLogAuxState
from broker.metadata.events import RECOVERED, RECOVERING
from broker.registry import REGISTRY
from broker.replica.replica_manager import ReplicaManager
from broker.worker.rpc import TieredState
from kafka_ds.process.settings import ConfigError
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    ApiVersionsRequest,
    DeleteRecordsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kafka_ds.protocol.messages.configs import CLIENT_METRICS_RESOURCE, DescribeConfigsResource
from kafka_ds.protocol.topic_partition import TopicIdPartition, TopicPartition
from kafka_ds.protocol.types import api_key_of
from kafka_ds.segments.producers import Producers
from tests.in_process import InProcess, batch_of, in_process, values_of
from tests.loops import in_loop, until
from tests.requests import build

TOPIC, BROKER = 2, 4
TIERED = {"remote_log_storage_system_enable": "true"}


@pytest.mark.parametrize("version", range(0, 6))
@pytest.mark.parametrize("unstable", [False, True])
@in_loop
async def test_api_versions_are_those_of_the_registry(
    memory_path: Path, version: int, unstable: bool
) -> None:
    async with in_process(memory_path, unstable_api_versions_enable=unstable) as broker:
        request = ApiVersionsRequest(client_software_name="x", client_software_version="1.0")
        response = await broker.ask(request, version)
        told = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
        clients = [
            served
            for served in REGISTRY
            if not served.internal and served.api_key not in CLIENT_METRICS_KEYS
        ]
        init_producer_id = api_key_of(InitProducerIdRequest)
        known = {served.api_key: served.advertised for served in clients}
        assert told == known | {init_producer_id: (0, 6 if unstable else 5)}
        assert told[0] == (0, 13)
        assert told[1] == (4, 18)


@in_loop
async def test_clients_are_asked_for_metrics_where_somebody_subscribes(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:

        async def advertised() -> set[int]:
            request = ApiVersionsRequest(client_software_name="x", client_software_version="1.0")
            told = {each.api_key for each in (await broker.ask(request, 3)).api_keys}
            return told & CLIENT_METRICS_KEYS

        assert await advertised() == set()
        one = {"name": "metrics", "config_operation": 0, "value": "*"}
        resource = {
            "resource_type": CLIENT_METRICS_RESOURCE,
            "resource_name": "s",
            "configs": [one],
        }
        alter = build(IncrementalAlterConfigsRequest, resources=[resource], validate_only=False)
        assert (await broker.ask(alter, 1)).responses[0].error_code == ErrorCode.NONE
        assert await advertised() == CLIENT_METRICS_KEYS


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\n"])
@in_loop
async def test_a_client_with_an_impossible_name(memory_path: Path, name: str) -> None:
    async with in_process(memory_path) as broker:
        request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
        response = await broker.ask(request, 3)
        assert response.error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_a_client_that_was_routed_to_the_wrong_broker_is_sent_back(memory_path: Path) -> None:
    """KIP-1242: it names the cluster and the node that it expects, both or none."""
    async with in_process(memory_path) as broker:
        here = broker.node.metadata.cluster_id
        for cluster_id, node_id, code in (
            (here, 1, ErrorCode.NONE),
            (None, -1, ErrorCode.NONE),
            (here, 2, ErrorCode.REBOOTSTRAP_REQUIRED),
            ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
            (here, -1, ErrorCode.INVALID_REQUEST),
            (None, 1, ErrorCode.INVALID_REQUEST),
        ):
            request = ApiVersionsRequest(
                client_software_name="x",
                client_software_version="1.0",
                cluster_id=cluster_id,
                node_id=node_id,
            )
            response = await broker.ask(request, 5)
            assert response.error_code == code
            assert bool(response.api_keys) == (code is ErrorCode.NONE)


@pytest.mark.parametrize("version", range(0, 3))
@in_loop
async def test_the_cluster_is_described(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        request = DescribeClusterRequest(include_cluster_authorized_operations=version > 0)
        response = await broker.ask(request, version)
        (node,) = response.brokers
        assert (node.broker_id, node.host, node.port) == (1, *broker.owner.bound_address)
        assert (response.error_code, response.controller_id) == (0, 1)
        assert response.cluster_id == broker.node.metadata.cluster_id
        assert (response.cluster_authorized_operations > 0) == (version > 0)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
@in_loop
async def test_only_brokers_are_described(memory_path: Path, kind: int, code: ErrorCode) -> None:
    async with in_process(memory_path) as broker:
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=kind
        )
        response = await broker.ask(request, 1)
        assert response.error_code == code
        assert response.error_message


@pytest.mark.parametrize("version", range(0, 7))
@in_loop
async def test_this_broker_coordinates(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        for kind in (0, 1):
            request = FindCoordinatorRequest(key="k", key_type=kind, coordinator_keys=["k", "l"])
            if version == 0 and kind:
                continue
            response = await broker.ask(request, version)
            found = response.coordinators if version >= 4 else [response]
            assert len(found) == (2 if version >= 4 else 1)
            for each in found:
                address = (each.node_id, each.host, each.port)
                assert (each.error_code, *address) == (0, 1, *broker.owner.bound_address)
        if version >= 1:
            unknown = FindCoordinatorRequest(key="k", key_type=2, coordinator_keys=["k"])
            response = await broker.ask(unknown, version)
            (each,) = response.coordinators if version >= 4 else [response]
            assert (each.error_code, each.node_id) == (ErrorCode.INVALID_REQUEST, -1)


async def describe(
    broker: InProcess, kind: int, name: str, version: int = 4, **options: Any
) -> Any:
    keys = options.pop("keys", None)
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(resources=[resource], **options)
    (result,) = (await broker.ask(request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", range(1, 5))
@in_loop
async def test_settings_with_their_sources(memory_path: Path, version: int) -> None:
    async with in_process(memory_path, log_segment_bytes=2_000_000) as broker:
        await broker.create("t", retention_ms=77)
        result = await describe(broker, TOPIC, "t", version, include_synonyms=True)
        told = {config.name: config for config in result.configs}
        own, inherited, default = (
            told[name] for name in ("retention.ms", "segment.bytes", "flush.ms")
        )
        assert [(c.value, c.config_source) for c in (own, inherited, default)] == [
            ("77", 1),
            ("2000000", 4),
            ("9223372036854775807", 5),
        ]
        assert [(s.name, s.value, s.source) for s in own.synonyms] == [
            ("retention.ms", "77", 1),
            ("log.retention.ms", "604800000", 5),
        ]
        assert all(c.config_type > 0 for c in result.configs) == (version >= 3)
        result = await describe(broker, BROKER, "1", version, include_documentation=version >= 3)
        told = {config.name: config for config in result.configs}
        assert told["lake.uri"].value == str(memory_path / "lake")
        assert told["lake.uri"].read_only
        assert not told["lake.uri"].synonyms
        assert bool(told["lake.uri"].documentation) == (version >= 3)


@in_loop
async def test_only_the_settings_asked_for(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        result = await describe(broker, BROKER, "1", keys=["lake.uri", "no.such"])
        assert [config.name for config in result.configs] == ["lake.uri"]
        # No names ask for all, as in Kafka.
        everything = (await describe(broker, BROKER, "1", keys=None)).configs
        assert len((await describe(broker, BROKER, "1", keys=[])).configs) == len(everything) > 100
        # What the cluster's first controller has set for all brokers.
        of_all = await describe(broker, BROKER, "")
        assert [config.name for config in of_all.configs] == ["min.insync.replicas"]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (16, "", ErrorCode.INVALID_REQUEST),
    ],
)
@in_loop
async def test_resources_that_are_not_there(
    memory_path: Path, kind: int, name: str, code: ErrorCode
) -> None:
    async with in_process(memory_path) as broker:
        result = await describe(broker, kind, name)
        assert (result.error_code, result.configs) == (code, [])
        assert result.error_message


async def producer_id(broker: InProcess, version: int = 4, **fields: Any) -> Any:
    given = {"transactional_id": None, "transaction_timeout_ms": 60000, **fields}
    request = InitProducerIdRequest(**given)
    return await broker.ask(request, version)


@pytest.mark.parametrize("version", range(0, 6))
@in_loop
async def test_producer_ids(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        ids = set()
        for _ in range(3):
            answer = await producer_id(broker, version)
            assert (answer.error_code, answer.producer_epoch) == (0, 0)
            ids.add(answer.producer_id)
        assert len(ids) == 3
        # Nobody has asked for a coordinator: there is no topic yet in which it could keep this.
        refused = await producer_id(broker, version, transactional_id="x")
        assert refused.error_code == ErrorCode.NOT_COORDINATOR
        assert (refused.producer_id, refused.producer_epoch) == (-1, -1)


@in_loop
async def test_an_id_of_before_comes_with_its_epoch(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        both = await producer_id(broker, producer_id=5, producer_epoch=2)
        assert (both.error_code, both.producer_epoch) == (0, 0)
        for fields in ({"producer_id": 5}, {"producer_epoch": 5}):
            refused = await producer_id(broker, **fields)
            assert refused.error_code == ErrorCode.INVALID_REQUEST


@in_loop
async def test_no_id_is_given_twice_whatever_happens(memory_path: Path) -> None:
    ids: list[int] = []
    for _ in range(3):
        async with in_process(memory_path) as broker:
            answers = await asyncio.gather(*(producer_id(broker) for _ in range(1200)))
            ids += [answer.producer_id for answer in answers]
    assert len(set(ids)) == len(ids) == 3600


@in_loop
async def test_an_id_that_cannot_be_made_durable_is_not_given(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:

        async def refuse(*_: object) -> None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

        with monkeypatch.context() as patched:
            patched.setattr(broker.node.metadata_driver, "decide", refuse)
            answer = await producer_id(broker)
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await producer_id(broker)).error_code == ErrorCode.NONE


# -- restarts -----------------------------------------------------------------------------------


@in_loop
async def test_a_clean_restart_knows_everything(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("t", 3, retention_ms=99)
        await broker.produce("t", batch_of([b"a"]), partition=2)
        cluster_id = broker.node.metadata.cluster_id
    async with in_process(memory_path) as broker:
        image = broker.node.metadata
        assert image.cluster_id == cluster_id
        assert image.topics["t"].topic_id == topic_id
        assert image.topics["t"].configs == {"retention.ms": "99"}
        states = {p.leader_recovery_state for p in image.topics["t"].partitions.values()}
        assert states == {RECOVERED}
        assert values_of((await broker.fetch("t", 0, partition=2)).records) == [b"a"]


def crash(source: Path, target: Path) -> None:
    """What a SIGKILL leaves: the files as they are, while the broker still runs."""
    # A file that is being written has another name until it is whole.
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock", "._*.tmp"))


async def crashed(folder: Path, **settings: Any) -> None:
    """A broker with two records in a topic is killed; what it leaves is in folder `b`."""
    async with in_process(folder / "a", **settings) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
        crash(folder / "a", folder / "b")


@in_loop
async def test_an_unclean_restart_recovers(memory_path: Path) -> None:
    await crashed(memory_path)
    async with in_process(memory_path / "b") as broker:
        await recovered(broker)
        assert (await broker.produce("t", batch_of([b"c"]))).base_offset == 2
        assert values_of((await broker.fetch("t", 0)).records) == [b"a", b"b", b"c"]
        registration = broker.node.metadata.topics["t"].partitions[0]
        assert (registration.leader_epoch, registration.leader_recovery_state) == (1, RECOVERED)


async def recovered(broker: InProcess) -> None:
    await until(lambda: not broker.node.replica_manager.is_recovering)


class TierBeyondLog:
    """A lake that goes beyond the log."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.is_away = True
        self.producers = Producers()
        self.opened: list[tuple[int, int]] = []
        self.deleted: list[str] = []

    async def highest_offsets_in_remote_storage(
        self, partitions: Collection[TopicIdPartition]
    ) -> list[int | KafkaError]:
        if self.is_away:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the store is away")
        return [self.end] * len(partitions)

    async def fence(
        self, leader_epochs: Mapping[TopicIdPartition, int], loads: Mapping[bytes, str]
    ) -> list[TieredState | KafkaError]:
        ends = await self.highest_offsets_in_remote_storage(leader_epochs)
        return [
            end
            if isinstance(end, KafkaError)
            else TieredState(highest_offset_in_remote_storage=end, log_start_offset=0)
            for end in ends
        ]

    async def aux_state(
        self, partition: TopicIdPartition, offset: int
    ) -> tuple[int, RemoteLogAuxState]:
        assert offset == self.end
        aux_state = RemoteLogAuxState(
            producer_snapshot=self.producers.encode_snapshot(), leader_epochs=((0, 0),)
        )
        return self.end + 1, aux_state

    def partition_opened(
        self, log: Any, *, leader_epoch: int, last_stable_offset: Any, **heard: Any
    ) -> None:
        self.opened.append((leader_epoch, last_stable_offset()))

    def partition_closed(self, topic_id: bytes, partition: int) -> None:
        """Nothing is copied here."""

    def segment_rolled(self, log: Any) -> None:
        """Nothing is copied here."""

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        self.deleted.append(topic)


def fake_lake(
    monkeypatch: pytest.MonkeyPatch,
    highest_offset_in_remote_storage: int,
    *,
    waits_seconds: float = 0.0,
) -> TierBeyondLog:
    """What the partitions of brokers to come ask instead of the lake; clients wait for it as long as given."""
    tier = TierBeyondLog(highest_offset_in_remote_storage)
    make = ReplicaManager.__init__

    def make_with_fake(self: ReplicaManager, *given: Any, **named: Any) -> None:
        context, leading = given
        make(self, replace(context, remote_log_manager=tier), leading, **named)

    monkeypatch.setattr("broker.replica.lake_recovery.RECOVERY_RETRY_SECONDS", 0.01)
    monkeypatch.setattr("broker.replica.leader.partition.RECOVERY_SECONDS_MAX", waits_seconds)
    monkeypatch.setattr(ReplicaManager, "__init__", make_with_fake)
    return tier


@pytest.mark.parametrize(
    ("highest_offset_in_remote_storage", "expected"), [(-1, 2), (0, 2), (1, 2), (2, 3), (40, 41)]
)
@in_loop
async def test_after_an_unclean_stop_the_log_goes_on_behind_the_lake(
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    highest_offset_in_remote_storage: int,
    expected: int,
) -> None:
    await crashed(memory_path, **TIERED)
    tier = fake_lake(monkeypatch, highest_offset_in_remote_storage)
    async with in_process(memory_path / "b", **TIERED) as broker:
        partition = broker.node.replica_manager.get("t", 0)
        await asyncio.sleep(0.03)
        state = broker.node.metadata.topics["t"].partitions[0].leader_recovery_state
        assert state == RECOVERING
        for refused in (
            await broker.produce("t", batch_of([b"x"])),
            await broker.fetch("t", 0),
        ):
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.counters.produce_failures == 0, "clients ask again, as at any other leader"
        assert not tier.opened
        tier.is_away = False
        await recovered(broker)
        answer = await broker.produce("t", batch_of([b"c"]))
        assert (answer.error_code, answer.base_offset) == (0, expected)
        assert partition.high_watermark == expected + 1
        assert tier.opened == [(1, expected)]
        data = await broker.fetch("t", expected)
        assert values_of(data.records) == [b"c"]
        await broker.node.metadata_driver.delete_topics([("t", bytes(16))])
        assert tier.deleted == ["t"]


@pytest.mark.parametrize("is_deleted", [False, True])
@in_loop
async def test_clients_wait_while_the_leader_compares_its_log_with_the_lake(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    await crashed(memory_path, **TIERED)
    tier = fake_lake(monkeypatch, 40, waits_seconds=600.0)
    async with in_process(memory_path / "b", **TIERED) as broker:
        latest = build(ListOffsetsRequest, replica_id=-1, name="t", partition_index=0, timestamp=-1)
        epoch = build(
            OffsetForLeaderEpochRequest, replica_id=-1, topic="t", partition=0, leader_epoch=0
        )
        deletion = build(DeleteRecordsRequest, name="t", partition_index=0, offset=41, timeout_ms=9)
        asked = [
            asyncio.create_task(each)
            for each in (
                broker.produce("t", batch_of([b"c"])),
                broker.produce("t", batch_of([b"d"])),
                broker.fetch("t", 41, max_wait_ms=600_000),
                broker.ask(latest, 9),
                broker.ask(epoch, 4),
                broker.ask(deletion, 2),
            )
        ]
        nothing = await broker.fetch("t", 0, max_wait_ms=1)
        assert (nothing.error_code, nothing.high_watermark) == (ErrorCode.NONE, -1)
        assert not any(each.done() for each in asked)
        if is_deleted:
            await broker.node.metadata_driver.delete_topics([("t", bytes(16))])
        tier.is_away = False
        first, second, read, *others = await asyncio.gather(*asked)
        found = [first, second, read, *(each.topics[0].partitions[0] for each in others)]
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [each.error_code for each in found] == [gone if is_deleted else ErrorCode.NONE] * 6
        if not is_deleted:
            assert (first.base_offset, second.base_offset) == (41, 42)
            assert values_of(read.records)[0] == b"c"


@in_loop
async def test_clients_wait_for_a_recovery_by_when_it_began(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by their first request: what is still recovering long after the start keeps nobody."""
    await crashed(memory_path, **TIERED)
    fake_lake(monkeypatch, 40, waits_seconds=0.01)
    async with in_process(memory_path / "b", **TIERED) as broker:
        await asyncio.sleep(0.02)
        partition = broker.node.replica_manager.get("t", 0)
        assert partition.leader.is_recovering
        assert partition.recovery is None
        refused = await broker.produce("t", batch_of([b"c"]))
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("stops_while_asking", [False, True])
@in_loop
async def test_a_log_that_was_lost_under_a_clean_stop_goes_on_behind_the_lake(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, stops_while_asking: bool
) -> None:
    async with in_process(memory_path, **TIERED) as broker:
        await broker.create("t", 2)
        await broker.produce("t", batch_of([b"a", b"b"]))
        await broker.produce("t", batch_of([b"a", b"b"]), partition=1)
    shutil.rmtree(memory_path / "log" / "t-0")
    tier = fake_lake(monkeypatch, 1)
    if stops_while_asking:
        async with in_process(memory_path, **TIERED) as broker:
            refused = await broker.produce("t", batch_of([b"x"]))
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        (memory_path / "log" / "replication-offset-checkpoint").unlink()
    async with in_process(memory_path, **TIERED) as broker:
        refused = await broker.produce("t", batch_of([b"x"]))
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        tier.is_away = False
        await recovered(broker)
        assert (await broker.produce("t", batch_of([b"c"]))).base_offset == 2
        assert values_of((await broker.fetch("t", 2)).records) == [b"c"]
        assert (await broker.produce("t", batch_of([b"c"]), partition=1)).base_offset == 2


@in_loop
async def test_producers_and_epochs_are_taken_over_from_the_lake(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a batch's answer was lost together with the disk, its retry is not appended a second time."""
    given = batch_of([b"a"], producer_id=7, producer_epoch=0, base_sequence=0)
    tier = fake_lake(monkeypatch, 0)
    tier.is_away = False
    async with in_process(memory_path, **TIERED) as broker:
        await broker.create("t")
        await broker.produce("t", given)
        tier.producers = broker.node.replica_manager.get("t", 0).log.producers
        # A transaction that is open in the snapshot: what the lake holds of it was decided.
        producer = tier.producers.get(7)
        assert producer is not None
        producer.transaction_start = 0
    shutil.rmtree(memory_path / "log" / "t-0")
    async with in_process(memory_path, **TIERED) as broker:
        await recovered(broker)
        assert (await broker.produce("t", given)).base_offset == 0
        after = batch_of([b"b"], producer_id=7, producer_epoch=0, base_sequence=1)
        assert (await broker.produce("t", after)).base_offset == 1
        partition = broker.node.replica_manager.get("t", 0)
        assert partition.last_stable_offset() == 2
        assert [partition.epoch_of(offset) for offset in (0, 1)] == [0, 1]


@in_loop
async def test_a_log_below_its_high_watermark_asks_the_lake(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path / "a", **TIERED) as broker:
        await broker.create("t")
    async with in_process(memory_path / "a", **TIERED) as broker:
        for _ in range(3):
            await broker.produce("t", batch_of([b"a"]))
        crash(memory_path / "a" / "log" / "t-0", memory_path / "older")
        await broker.produce("t", batch_of([b"b"]))
    shutil.rmtree(memory_path / "a" / "log" / "t-0")
    crash(memory_path / "older", memory_path / "a" / "log" / "t-0")
    tier = fake_lake(monkeypatch, 3)
    tier.is_away = False
    async with in_process(memory_path / "a", **TIERED) as broker:
        await recovered(broker)
        assert (await broker.produce("t", batch_of([b"c"]))).base_offset == 4


@in_loop
async def test_logs_of_topics_that_are_gone_are_deleted(memory_path: Path) -> None:
    async with in_process(memory_path / "a") as broker:
        await broker.create("t")
        await broker.create("u")
        crash(memory_path / "a", memory_path / "b")
        await broker.node.metadata_driver.delete_topics([("t", bytes(16))])
        shutil.rmtree(memory_path / "b" / "lake")
        shutil.copytree(memory_path / "a" / "lake", memory_path / "b" / "lake")
    # The deletion was decided, and the broker died before the folder was gone.
    async with in_process(memory_path / "b") as broker:
        await recovered(broker)
        assert (memory_path / "b" / "log" / "u-0").exists()
        assert not (memory_path / "b" / "log" / "t-0").exists()


@in_loop
async def test_disks_without_logs_begin_a_cluster_again_and_it_is_said(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(memory_path) as broker:
        before = broker.node.metadata.cluster_id
    shutil.rmtree(memory_path / "lake")
    async with in_process(memory_path) as broker:
        assert broker.node.metadata.cluster_id == before
    assert f"holds no cluster, but log.dirs={memory_path / 'log'} were of cluster {before}" in (
        caplog.text
    )


@in_loop
async def test_logs_without_a_cluster_are_refused(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
    shutil.rmtree(memory_path / "lake")
    with pytest.raises(ConfigError, match=r"lake.uri=.*lake holds no cluster.*log.dirs"):
        async with in_process(memory_path):
            raise AssertionError("started")
    assert (memory_path / "log" / "t-0").exists()


@in_loop
async def test_a_lost_disk_is_a_new_beginning_of_the_same_topics(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        topic_id = await broker.create("t")
    shutil.rmtree(memory_path / "log")
    async with in_process(memory_path) as broker:
        await recovered(broker)
        assert broker.node.metadata.topics["t"].topic_id == topic_id
        assert (await broker.produce("t", batch_of([b"a"]))).base_offset == 0


@in_loop
async def test_a_log_that_cannot_be_opened_is_one_partitions_trouble(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        make = broker.node.log_manager.create

        def create(key: TopicPartition, *rest: Any, **more: Any) -> Any:
            if key.partition == 1:
                raise OSError("no space left")
            return make(key, *rest, **more)

        monkeypatch.setattr(broker.node.log_manager, "create", create)
        await broker.create("t", 3)
        codes = [
            (await broker.produce("t", batch_of([b"a"]), partition=i)).error_code for i in range(3)
        ]
        assert codes == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
