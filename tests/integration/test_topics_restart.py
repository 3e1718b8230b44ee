"""Topics across restarts of a real broker, through its own lake; folders that are somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import MetadataRequest
from tests.in_process import batch_of, fetch_request, produce_request, values_of
from tests.integration.raw_client import RawClient
from tests.processes import BrokerDied, BrokerProcess, running_broker, wait_until
from tests.requests import build

SETTINGS = {"remote.log.storage.system.enable": "false"}


def topics_of(bootstrap: str) -> dict[str, tuple[bytes, int]]:
    with RawClient(bootstrap) as client:
        response = client.ask(MetadataRequest(topics=None), 12)
        return {t.name: (t.topic_id, len(t.partitions)) for t in response.topics}


def create(broker: BrokerProcess, *topics: NewTopic) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics(list(topics)).values():
        future.result(120)
    return admin


@pytest.mark.parametrize("clean", [True, False])
def test_topics_are_read_back(tmp_path: Path, clean: bool) -> None:
    with running_broker(tmp_path, SETTINGS) as broker:
        admin = create(
            broker,
            NewTopic("a", 3, 1, config={"retention.ms": "12345"}),
            NewTopic("b", 1, 1),
            NewTopic("c", 2, 1),
        )
        admin.delete_topics(["b"])["b"].result(120)
        before = topics_of(broker.bootstrap)
        assert {name: count for name, (_, count) in before.items()} == {"a": 3, "c": 2}
        assert (broker.stop() if clean else broker.kill()) is not None
        broker.start()
        assert topics_of(broker.bootstrap) == before
        resource = ConfigResource(ResourceType.TOPIC, "a")
        (future,) = admin.describe_configs([resource]).values()
        assert future.result(120)["retention.ms"].value == "12345"
        folders = {path.name for path in broker.data.iterdir() if path.is_dir()}
        assert {"a-0", "a-1", "a-2", "c-0", "c-1"} <= folders
        assert "b-0" not in folders


def test_a_broker_without_its_disk_begins_the_same_topics_anew(tmp_path: Path) -> None:
    import shutil

    with running_broker(tmp_path, SETTINGS) as broker:
        create(broker, NewTopic("a", 1, 1))
        before = topics_of(broker.bootstrap)
        broker.kill()
        shutil.rmtree(broker.data)
        broker.start()
        assert topics_of(broker.bootstrap) == before


def test_many_partitions_at_once(tmp_path: Path) -> None:
    with running_broker(tmp_path, SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        create(broker, NewTopic("many", 300, 1))
        for partition in (0, 299):
            request = produce_request("many", batch_of([b"a"]), partition)
            answer = client.ask(request, 9).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NONE
        broker.stop()
        broker.start()
        with RawClient(broker.bootstrap) as again:
            data = again.ask(fetch_request("many", 0, 299), 12).responses[0].partitions[0]
            assert values_of(data.records) == [b"a"]


def refusal(broker: BrokerProcess) -> str:
    with pytest.raises(BrokerDied) as died:
        broker.start()
    assert "exit status 1" in str(died.value)
    text = broker.log_file.read_text()
    assert "Traceback" not in text
    return text


def test_a_lake_that_holds_something_else_is_refused_by_name(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS)
    foreign = broker.lake / "__cluster_metadata"
    foreign.mkdir(parents=True)
    (foreign / "holiday.jpg").write_bytes(b"...")
    assert str(foreign) in refusal(broker)
    assert (foreign / "holiday.jpg").exists()


def test_the_lake_of_another_cluster_is_refused_by_name(tmp_path: Path) -> None:
    with running_broker(tmp_path / "one", SETTINGS) as one:
        one.stop()
    with running_broker(tmp_path / "two", SETTINGS) as two:
        two.stop()
        two.overrides["lake.uri"] = one.lake
        text = refusal(two)
        assert str(two.data) in text
        assert "belongs to cluster" in text


def test_another_broker_goes_on_with_the_lake_but_no_second_one_of_its_number(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path / "one", SETTINGS) as one:
        create(one, NewTopic("a", 1, 1))
        twin = BrokerProcess(tmp_path / "twin", {**SETTINGS, "lake.uri": one.lake})
        told = f"node.id=1: already in use by the active controller at {one.bootstrap}"
        assert f"{told}: give each broker its own node.id" in refusal(twin)
        one.stop()
        settings = {**SETTINGS, "node.id": 2, "lake.uri": one.lake}
        with running_broker(tmp_path / "two", settings) as two:
            assert "a" in topics_of(two.bootstrap)
            create(two, NewTopic("b", 1, 1))


def test_a_crash_with_a_lake_goes_on_where_it_was(tmp_path: Path) -> None:
    """With tiering the leader asks the lake first where it ends, and clients wait for that."""
    with running_broker(tmp_path) as broker:
        create(broker, NewTopic("a", 1, 1))
        with RawClient(broker.bootstrap) as client:
            client.ask(produce_request("a", batch_of([b"a"])), 9)
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            patient = produce_request("a", batch_of([b"b"]))
            patient.timeout_ms = 60_000
            answer = client.ask(patient, 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            data = client.ask(fetch_request("a", 0), 12).responses[0].partitions[0]
            assert values_of(data.records) == [b"a", b"b"]
    assert "Traceback" not in broker.log_file.read_text()


def test_a_lost_disk_loses_only_what_was_not_in_the_lake(tmp_path: Path) -> None:
    import shutil

    settings = {"lake.local.grace.ms": 0}
    with running_broker(tmp_path, settings) as broker:
        create(broker, NewTopic("a", 1, 1, config={"segment.bytes": str(1 << 20)}))
        with RawClient(broker.bootstrap) as client:
            values = [b"%06d" % i + b"v" * 200_000 for i in range(12)]
            for value in values:
                answer = client.ask(produce_request("a", batch_of([value])), 9)
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            wait_until("segments in the lake", lambda: offset_of(client, -5) >= 4)
        broker.kill()
        shutil.rmtree(broker.data)
        broker.start()
        with RawClient(broker.bootstrap) as client:
            wait_until("the lake to be asked", lambda: offset_of(client, -1) >= 0)
            kept = offset_of(client, -1)
            assert 5 <= kept == offset_of(client, -4) == offset_of(client, -6) <= 12
            assert offset_of(client, -2) == 0
            answer = client.ask(produce_request("a", batch_of([b"next"])), 9)
            assert answer.responses[0].partition_responses[0].base_offset == kept
            read: list[bytes | None] = []
            while len(read) <= kept:
                data = client.ask(fetch_request("a", len(read)), 12).responses[0].partitions[0]
                assert data.error_code == ErrorCode.NONE
                read += values_of(data.records)
            assert read == [*values[:kept], b"next"]


def offset_of(client: RawClient, timestamp: int) -> int:
    from kafka_ds.protocol.messages import ListOffsetsRequest

    request = build(
        ListOffsetsRequest, replica_id=-1, name="a", partition_index=0, timestamp=timestamp
    )
    found = client.ask(request, 11).topics[0].partitions[0]
    assert found.error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    offset: int = found.offset
    return offset
