"""The small client: versions, leaders, retries, time-outs that name broker and option, pinned ranges."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from kafka_ds.client import cluster as cluster_module
from kafka_ds.client import connection
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.connection import Connection
from kafka_ds.client.fetch import CompletedFetch, Range, aborted_ranges, fetch_range
from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import (
    BrokerTimeout,
    BrokerUnreachable,
    ConnectionRefused,
    NoSuchHost,
    OffsetsGone,
    PlanDiverged,
    TopicGone,
    UnsupportedByBroker,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka_ds.protocol.messages.cluster import MetadataResponsePartition
from kafka_ds.protocol.messages.data import FetchPartitionData
from kafka_ds.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    OffsetForLeaderEpochEndOffset,
)
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import (
    ControlType,
    Record,
    build_batch,
    end_transaction_marker,
    read_header,
)
from tests.fakes.clock import ManualClock
from tests.fakes.scripted_broker import CLOSE, SILENCE, TOPIC_ID, ScriptedBroker, scripted
from tests.processes import wait_until
from tests.requests import build

P = ("t", 0)


def settings(broker: ScriptedBroker, **changes: Any) -> ClientSettings:
    given = {
        "request_timeout_ms": 200,
        "default_api_timeout_ms": 1500,
        "retry_backoff_ms": 1,
        "retry_backoff_max_ms": 5,
        **changes,
    }
    return ClientSettings(bootstrap_servers=(("127.0.0.1", broker.port),), **given)


def listed(offset: int = 5, code: int = 0) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(
        partition_index=0, offset=offset, leader_epoch=0, error_code=code
    )
    return build(ListOffsetsResponse, topics=[{"name": "t", "partitions": [partition]}])


def fetched(records: bytes = b"", code: int = 0) -> FetchResponse:
    partition = FetchPartitionData(
        partition_index=0, error_code=code, high_watermark=100, records=records
    )
    return build(FetchResponse, topic="t", topic_id=TOPIC_ID, partitions=[partition])


def batch(first: int, count: int, **more: Any) -> bytes:
    records = [Record(first + n, 1000 + n, None, b"%d" % (first + n)) for n in range(count)]
    return build_batch(records, base_offset=first, leader_epoch=0, **more)


def in_turn(*answers: Any) -> Callable[[Any], Any]:
    """A script that answers everything but Metadata by these, one after the other, the last for ever."""
    left = list(answers)

    def script(request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return script


def requests(broker: ScriptedBroker, kind: type) -> list[Any]:
    return [request for request in broker.seen if isinstance(request, kind)]


# -- asking -------------------------------------------------------------------------------------


def test_retriable_errors_and_lost_connections_are_asked_again() -> None:
    moved = listed(code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with scripted(in_turn(moved, CLOSE, SILENCE, listed(7))) as broker:
        with Cluster(settings(broker)) as cluster:
            assert cluster.offsets({P: -1}, read_committed=True)[P].offset == 7
        assert len(requests(broker, ListOffsetsRequest)) == 4
        assert all(r.isolation_level == 1 for r in requests(broker, ListOffsetsRequest))
        # Each of the three misfortunes makes the metadata doubtful.
        assert len(requests(broker, MetadataRequest)) >= 4


def test_final_errors_are_not_asked_again() -> None:
    with scripted(in_turn(listed(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))) as broker:
        with Cluster(settings(broker)) as cluster, pytest.raises(KafkaError, match="t-0"):
            cluster.offsets({P: -1}, read_committed=True)
        assert len(requests(broker, ListOffsetsRequest)) == 1


def test_a_time_out_names_the_broker_and_the_option() -> None:
    with scripted(in_turn(SILENCE)) as broker:
        wanted = settings(broker, request_timeout_ms=50, default_api_timeout_ms=120)
        with Cluster(wanted) as cluster, pytest.raises(BrokerTimeout) as error:
            cluster.offsets({P: -1}, read_committed=True)
    text = str(error.value)
    assert "kafka.default.api.timeout.ms=120" in text
    assert f"broker 127.0.0.1:{broker.port}" in text
    assert "kafka.request.timeout.ms=50" in text


def test_a_listener_of_another_protocol_names_the_option() -> None:
    hint = r"\(option 'kafka\.security\.protocol' is PLAINTEXT: is it this listener's\?\)$"
    with scripted(lambda _: CLOSE) as broker:
        connection = Connection(
            "127.0.0.1", broker.port, settings(broker, request_timeout_ms=30_000)
        )
        with pytest.raises(BrokerUnreachable, match=hint):
            connection.call(MetadataRequest(topics=None), MetadataResponse)
    with scripted(in_turn(CLOSE)) as broker:
        connection = Connection(
            "127.0.0.1", broker.port, settings(broker, request_timeout_ms=30_000)
        )
        connection.call(MetadataRequest(topics=None), MetadataResponse)
        with pytest.raises(BrokerUnreachable) as ended:
            connection.call(ListOffsetsRequest(replica_id=-1, topics=[]), ListOffsetsResponse)
    assert "disconnected" in str(ended.value)
    assert "security.protocol" not in str(ended.value)


def test_no_broker_at_all_names_the_option(free_port: int) -> None:
    wanted = ClientSettings(
        bootstrap_servers=(("127.0.0.1", free_port),), default_api_timeout_ms=50, retry_backoff_ms=1
    )
    with (
        Cluster(wanted) as cluster,
        pytest.raises(ConnectionRefused, match="kafka.bootstrap.servers"),
    ):
        cluster.topics(["t"])


def refuse(*_: object, **__: object) -> NoReturn:
    raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(("was_there", "seconds"), [(False, 15), (True, 60)])
def test_brokers_that_all_refuse_are_given_up_soon_unless_they_were_there_before(
    monkeypatch: pytest.MonkeyPatch, was_there: bool, seconds: float
) -> None:
    """A wrong port, or a cluster that is not started, is told by its addresses; one that restarts is waited for."""
    monkeypatch.setattr(connection, "KNOWN", {"a.example:9092"} if was_there else set())
    monkeypatch.setattr(socket, "create_connection", refuse)
    clock = ManualClock(0)
    monkeypatch.setattr(cluster_module, "time", clock)
    wanted = ClientSettings(bootstrap_servers=(("a.example", 9092), ("b.example", 9093)))
    kind = BrokerTimeout if was_there else ConnectionRefused
    with Cluster(wanted) as cluster, pytest.raises(kind) as error:
        cluster.topics(["t"])
    assert seconds - 2 <= clock.monotonic() <= seconds
    assert "a.example:9092" in str(error.value) and "b.example:9093" in str(error.value)


def test_silence_is_told_of_before_the_patience_is_over(
    free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = ClientSettings(
        bootstrap_servers=(("127.0.0.1", free_port),),
        default_api_timeout_ms=1_000,
        retry_backoff_ms=1,
    )
    # Commands want errors alone, and run in this process, too.
    caplog.set_level(logging.WARNING, "kafka_ds.client")
    with Cluster(wanted) as cluster, pytest.raises(ConnectionRefused):
        cluster.topics(["t"])
    told = [record.getMessage() for record in caplog.records if record.name == "kafka_ds.client"]
    assert len(told) == 1
    assert "'kafka.bootstrap.servers'" in told[0] and "kafka.default.api.timeout.ms=1000" in told[0]


@pytest.mark.parametrize("is_led", [False, True], ids=["no leader", "unreachable"])
def test_a_leader_that_is_waited_for_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_led: bool
) -> None:
    caplog.set_level(logging.WARNING, "kafka_ds.client")
    monkeypatch.setattr(cluster_module, "time", ManualClock(0))

    def script(request: Any) -> Any:
        if not isinstance(request, MetadataRequest):
            return CLOSE
        partition = MetadataResponsePartition(
            partition_index=0,
            leader_id=1 if is_led else -1,
            leader_epoch=0,
            replica_nodes=[1],
            isr_nodes=[1],
        )
        return broker.metadata(partitions=[partition])

    with scripted(script) as broker:
        backoff = {"retry_backoff_ms": 500, "retry_backoff_max_ms": 500}
        with Cluster(settings(broker, default_api_timeout_ms=10_000, **backoff)) as cluster:
            for told in (1, 2):
                with pytest.raises(BrokerTimeout):
                    cluster.offsets({TopicPartition(*P): -1}, read_committed=True)
                cluster.topics(["t"])
                assert len(caplog.records) == told
    what = f"broker 127.0.0.1:{broker.port} disconnected" if is_led else "t-0 has no leader"
    assert caplog.messages[0].startswith(what)
    assert caplog.messages[0].endswith("; retrying for up to 8 s")


def no_such_host(*_: object, **__: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_names_that_nobody_knows_end_it_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cluster_module.PATIENCE_MS, NoSuchHost, 20)
    tries = []

    def connect(*at: Any, **_: object) -> NoReturn:
        tries.append(at)
        no_such_host()

    monkeypatch.setattr(socket, "create_connection", connect)
    wanted = ClientSettings(
        bootstrap_servers=(("a.invalid", 9092), ("b.invalid", 9092)), retry_backoff_ms=1
    )
    with Cluster(wanted) as cluster, pytest.raises(NoSuchHost) as error:
        cluster.topics(["t"])
    text = str(error.value)
    assert (
        "'kafka.bootstrap.servers'" in text
        and "a.invalid:9092" in text
        and "b.invalid:9092" in text
    )
    assert len(tries) > 2


def test_a_name_that_is_unknown_for_a_moment_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Like that of a headless service while brokers are rolled; also in a process that never reached any of them."""
    connect, gaps = socket.create_connection, iter(range(3))

    def gap(*at: Any, **how: Any) -> socket.socket:
        if next(gaps, None) is not None:
            no_such_host()
        return connect(*at, **how)

    with scripted(in_turn(listed(7))) as broker, Cluster(settings(broker)) as cluster:
        monkeypatch.setattr(socket, "create_connection", gap)
        assert cluster.offsets({P: -1}, read_committed=True)[P].offset == 7


@pytest.mark.parametrize("same_client", [True, False])
def test_a_name_that_is_unknown_later_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, same_client: bool
) -> None:
    """It had an address in this process, so it is no mistake; a sink has a new client for each task and commit."""
    monkeypatch.setitem(cluster_module.PATIENCE_MS, NoSuchHost, 0)
    with scripted(in_turn(listed(7))) as broker:
        wanted = settings(broker, default_api_timeout_ms=50, retry_backoff_ms=1)
        with Cluster(wanted) as first, Cluster(wanted) as other:
            first.offsets({P: -1}, read_committed=True)
            first.close()
            monkeypatch.setattr(socket, "create_connection", no_such_host)
            with pytest.raises(BrokerTimeout):
                (first if same_client else other).offsets({P: -1}, read_committed=True)


def test_a_name_has_an_address_also_where_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    host = "refuses.example"
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(BrokerUnreachable):
        Connection(host, free_port, ClientSettings(bootstrap_servers=((host, free_port),)))
    monkeypatch.setattr(socket, "create_connection", no_such_host)
    with pytest.raises(BrokerUnreachable) as error:
        Connection(host, free_port, ClientSettings(bootstrap_servers=((host, free_port),)))
    assert not isinstance(error.value, NoSuchHost)


def test_names_that_had_an_address_take_no_more_room_than_they_may() -> None:
    for number in range(connection.KNOWN_MAX + 1):
        connection.remember(f"h{number}.example")
    assert connection.is_known(f"h{connection.KNOWN_MAX}.example")
    assert not connection.is_known("h0.example")


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_what_cannot_be_a_name_is_the_name_of_no_host(host: str) -> None:
    with pytest.raises(NoSuchHost, match=f"{host}:9092"):
        Connection(host, 9092, ClientSettings(bootstrap_servers=((host, 9092),)))


def test_topics_that_do_not_exist_are_left_out() -> None:
    def script(request: Any) -> Any:
        assert not request.allow_auto_topic_creation
        return broker.metadata(
            name="u", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions=[]
        )

    with scripted(script) as broker, Cluster(settings(broker)) as cluster:
        assert cluster.topics(["u"]) == {}
        with pytest.raises(TopicGone, match="no topic u"):
            cluster.leader(("u", 0))


def test_old_brokers_are_spoken_to_in_old_versions() -> None:
    with scripted(in_turn(fetched(batch(0, 5)))) as broker:
        broker.versions = {1: (4, 11), 3: (0, 9), 2: (1, 5), 23: (2, 3)}
        with Cluster(settings(broker)) as cluster:
            wanted = Range(topic="t", partition=0, topic_id=bytes(16), start=0, end=5)
            chunks = list(fetch(cluster, wanted))
        assert len(chunks) == 1
        assert requests(broker, FetchRequest)[0].topics[0].topic == "t"


def test_no_common_version_is_told() -> None:
    with scripted(in_turn(listed())) as broker:
        broker.versions = {2: (0, 0)}
        with (
            Cluster(settings(broker)) as cluster,
            pytest.raises(UnsupportedByBroker, match="0 to 0"),
        ):
            cluster.offsets({P: -1}, read_committed=True)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b""])
def test_what_is_no_broker_is_told(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        wanted = ClientSettings(bootstrap_servers=(("127.0.0.1", port),), request_timeout_ms=300)

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(
            (BrokerUnreachable, BrokerTimeout, UnsupportedByBroker), match=str(port)
        ):
            Connection("127.0.0.1", port, wanted)
        thread.join()


# -- fetching -----------------------------------------------------------------------------------


def fetch(cluster: Cluster, wanted: Range, patience_ms: int = 500) -> list[CompletedFetch]:
    return list(fetch_range(cluster, wanted, poll_timeout_ms=patience_ms, read_committed=True))


def span(start: int = 0, end: int = 10, **changes: Any) -> Range:
    return Range(
        **{"topic": "t", "partition": 0, "topic_id": TOPIC_ID, "leader_epoch": 0, **changes},
        start=start,
        end=end,
    )


def test_a_range_is_fetched_ahead_and_not_beyond_its_end() -> None:
    answers = [fetched(batch(0, 4)), fetched(batch(4, 4)[:-3]), fetched(batch(4, 4) + batch(8, 9))]
    with scripted(in_turn(*answers)) as broker, Cluster(settings(broker)) as cluster:
        chunks = fetch(cluster, span())
        assert [read_header(chunk.records).base_offset for chunk in chunks] == [0, 4]
        offsets = [r.topics[0].partitions[0].fetch_offset for r in requests(broker, FetchRequest)]
        assert offsets == [0, 4, 4]
        assert {r.topics[0].topic_id for r in requests(broker, FetchRequest)} == {TOPIC_ID}


def test_an_answer_of_a_quota_is_no_end() -> None:
    throttled = FetchResponse(throttle_time_ms=20, responses=[])
    with scripted(in_turn(throttled, throttled, fetched(batch(0, 10)))) as broker:
        with Cluster(settings(broker)) as cluster:
            assert len(fetch(cluster, span())) == 1
        offsets = [r.topics[0].partitions[0].fetch_offset for r in requests(broker, FetchRequest)]
        assert offsets == [0, 0, 0]
    late = FetchResponse(throttle_time_ms=600_000, responses=[])
    patience = pytest.raises(BrokerTimeout, match="kafkaConsumer.pollTimeoutMs=50")
    with scripted(in_turn(late)) as broker, Cluster(settings(broker)) as cluster, patience:
        fetch(cluster, span(), patience_ms=50)


def test_the_next_fetch_is_under_way_while_a_chunk_is_handed_out() -> None:
    script = in_turn(fetched(batch(0, 4)), fetched(batch(4, 6)))
    with scripted(script) as broker, Cluster(settings(broker)) as cluster:
        chunks = fetch_range(cluster, span(), poll_timeout_ms=500, read_committed=True)
        next(chunks)
        wait_until("the second Fetch", lambda: len(requests(broker, FetchRequest)) == 2)
        assert len(list(chunks)) == 1


def test_a_record_of_a_later_epoch_is_none_of_the_plan() -> None:
    """Of a leader that lost its history: the log was cut and written again below the end of the range."""
    for planned, end, diverged in ((0, 10, False), (-1, 10, False), (0, 4, False), (0, 5, True)):
        records = batch(0, 4) + build_batch(
            [Record(4 + n, 1000 + n, None, b"v") for n in range(6)], base_offset=4, leader_epoch=1
        )
        if planned == 0 and end == 10:
            records = batch(0, 10)
        with scripted(in_turn(fetched(records))) as broker, Cluster(settings(broker)) as cluster:
            wanted = span(leader_epoch=planned, end=end)
            if diverged:
                with pytest.raises(PlanDiverged, match="under leader epoch 0.*of leader epoch 1"):
                    fetch(cluster, wanted)
            else:
                assert fetch(cluster, wanted)


def test_a_leader_that_is_lost_is_found_again() -> None:
    answers = [
        fetched(batch(0, 4)),
        CLOSE,
        fetched(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        fetched(batch(4, 6)),
    ]
    with scripted(in_turn(*answers)) as broker, Cluster(settings(broker)) as cluster:
        assert len(fetch(cluster, span())) == 2


def test_a_chunk_is_not_lost_with_the_connection_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker dies right after its answer: the next Fetch, which is sent before the answer is used, fails."""
    send, fetches = Connection.send, []

    def reset_once(self: Connection, request: Any, *more: Any) -> None:
        fetches.extend([request] if isinstance(request, FetchRequest) else [])
        if isinstance(request, FetchRequest) and len(fetches) == 2:
            self.close()
            raise BrokerUnreachable("reset")
        send(self, request, *more)

    monkeypatch.setattr(Connection, "send", reset_once)
    script = in_turn(fetched(batch(0, 4)), fetched(batch(4, 6)))
    with scripted(script) as broker, Cluster(settings(broker)) as cluster:
        chunks = fetch(cluster, span())
    assert [read_header(chunk.records).base_offset for chunk in chunks] == [0, 4]


@pytest.mark.parametrize(("end_offset", "diverged"), [(10, False), (12, False), (9, True)])
def test_a_new_leader_must_hold_what_was_planned(end_offset: int, diverged: bool) -> None:
    end = OffsetForLeaderEpochEndOffset(partition=0, leader_epoch=3, end_offset=end_offset)
    epochs = build(OffsetForLeaderEpochResponse, topics=[{"topic": "t", "partitions": [end]}])

    def script(request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            return None
        return epochs if isinstance(request, OffsetForLeaderEpochRequest) else fetched(batch(0, 10))

    with scripted(script) as broker, Cluster(settings(broker)) as cluster:
        broker.leader_epoch = 5
        if diverged:
            with pytest.raises(PlanDiverged, match="leader epoch 3.*now end at 9"):
                fetch(cluster, span(leader_epoch=3))
        else:
            assert len(fetch(cluster, span(leader_epoch=3))) == 1
            sent = requests(broker, FetchRequest)[0].topics[0].partitions[0]
            assert sent.current_leader_epoch == 5


def test_another_topic_of_the_same_name_is_not_read() -> None:
    with scripted(in_turn(fetched(batch(0, 4)))) as broker, Cluster(settings(broker)) as cluster:
        wanted = span(topic_id=b"x" * 16)
        with pytest.raises(TopicGone, match="deleted and created again"):
            fetch(cluster, wanted)


def test_offsets_that_are_gone_are_told_exactly() -> None:
    answers = [
        fetched(batch(0, 4)),
        fetched(code=ErrorCode.OFFSET_OUT_OF_RANGE),
        listed(6),
        listed(9),
    ]
    with scripted(in_turn(*answers)) as broker, Cluster(settings(broker)) as cluster:
        wanted = span()
        with pytest.raises(OffsetsGone) as error:
            fetch(cluster, wanted)
    gone = error.value
    assert (gone.position, gone.log_start, gone.log_end) == (4, 6, 9)


def test_patience_ends_without_progress() -> None:
    with scripted(in_turn(fetched())) as broker, Cluster(settings(broker)) as cluster:
        wanted = span()
        with pytest.raises(BrokerTimeout, match=r"t-0 \[0, 10\).*kafkaConsumer.pollTimeoutMs=50"):
            fetch(cluster, wanted, patience_ms=50)


def test_aborted_transactions_end_at_their_marker() -> None:
    def transactional(first: int, producer: int) -> bytes:
        return batch(first, 2, producer_id=producer, producer_epoch=0, is_transactional=True)

    def marker(offset: int, producer: int) -> bytes:
        return end_transaction_marker(
            ControlType.ABORT,
            offset=offset,
            timestamp=1,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
        )

    raw = [
        transactional(0, 7),
        transactional(2, 8),
        marker(4, 7),
        transactional(5, 7),
        marker(7, 8),
    ]
    headers = [read_header(each) for each in raw]
    assert sorted(aborted_ranges(headers, [(7, 0), (8, 2)])) == [(7, 0, 4), (8, 2, 7)]
    assert sorted(aborted_ranges(headers[:2], [(7, 0), (8, 2)])) == [
        (7, 0, 2**63 - 1),
        (8, 2, 2**63 - 1),
    ]
    assert aborted_ranges(headers, [(7, 5)]) == ((7, 5, 2**63 - 1),)
