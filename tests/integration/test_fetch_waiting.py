"""Long polls of a real broker: that they are answered as soon as there is something, and by what."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DeleteTopicsRequest, MetadataRequest
from tests.in_process import batch_of, fetch_request, produce_request, values_of
from tests.integration.raw_client import RawClient
from tests.processes import BrokerProcess, running_broker
from tests.requests import build


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"remote.log.storage.system.enable": "false"}
    with running_broker(tmp_path_factory.mktemp("broker"), settings) as process:
        yield process


def make_topic(client: RawClient, topic: str) -> bytes:
    response = client.ask(build(MetadataRequest, topics=[{"name": topic}]), 12)
    assert response.topics[0].error_code == ErrorCode.NONE
    topic_id: bytes = response.topics[0].topic_id
    return topic_id


def test_who_waits_is_answered_as_soon_as_there_is_something(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as reader, RawClient(broker.bootstrap) as writer:
        make_topic(writer, "ping")
        batch = batch_of([b"v" * 100])
        for offset in range(200):
            # Longer than the reader waits: an answer says that somebody woke it.
            wait = fetch_request("ping", offset, max_wait_ms=60_000)
            reader.send(wait, 12)
            time.sleep(0.001)  # Let it be parked.
            writer.send(produce_request("ping", batch), 9)
            data = reader.receive(wait, 12).responses[0].partitions[0]
            assert values_of(data.records) == [b"v" * 100]
            writer.receive(produce_request("ping", batch), 9)


def test_a_wait_ends_in_time(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        make_topic(client, "quiet")
        for wait_ms in (0, 50, 300):
            began = time.perf_counter()
            response = client.ask(fetch_request("quiet", 0, max_wait_ms=wait_ms), 12)
            took_ms = (time.perf_counter() - began) * 1000
            assert response.responses[0].partitions[0].error_code == ErrorCode.NONE
            assert took_ms >= wait_ms - 5


def test_one_append_answers_all_who_wait(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as first:
        make_topic(first, "idle")
        clients = [RawClient(broker.bootstrap) for _ in range(50)]
        request = fetch_request("idle", 0, max_wait_ms=60_000)
        for client in clients:
            client.send(request, 12)
        first.ask(produce_request("idle", batch_of([b"a"])), 9)
        for client in clients:
            data = client.receive(request, 12).responses[0].partitions[0]
            assert values_of(data.records) == [b"a"]
            client.socket.close()


def test_deleting_a_topic_answers_who_waits(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as reader, RawClient(broker.bootstrap) as admin:
        topic_id = make_topic(admin, "doomed")
        request = fetch_request("", 0, topic_id=topic_id, max_wait_ms=60_000)
        reader.send(request, 13)
        time.sleep(0.05)
        deletion = DeleteTopicsRequest(topic_names=["doomed"], timeout_ms=5000)
        assert admin.ask(deletion, 5).responses[0].error_code == ErrorCode.NONE
        data = reader.receive(request, 13).responses[0].partitions[0]
        assert data.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_who_hangs_up_while_waiting_leaves_nothing_behind(broker: BrokerProcess) -> None:
    with RawClient(broker.bootstrap) as client:
        make_topic(client, "left")
        for _ in range(50):
            with RawClient(broker.bootstrap) as leaver:
                leaver.send(fetch_request("left", 0, max_wait_ms=60_000), 12)
        time.sleep(0.1)
        response = client.ask(produce_request("left", batch_of([b"a"])), 9)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert "Traceback" not in broker.log_file.read_text()
