"""How metrics are named, added up, turned into text, and documented."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_parser,
)
from prometheus_client.parser import text_string_to_metric_families

from broker.metrics.names import (
    Metric,
    MetricKind,
    MetricSample,
    Summary,
    attribute,
    gauge,
    histogram,
    meter,
)
from broker.metrics.times import WINDOW_SECONDS, RecentTimes
from broker.replica.topic_metrics import topic_metrics
from broker.server.metrics import Metrics
from broker.server.metrics_text import SAMPLES_AT_ONCE, collect, joined, text_of
from kafka_ds.protocol.errors import ErrorCode, KafkaError, RecordsRefused
from kafka_ds.protocol.messages import ListOffsetsRequest, MetadataRequest
from tests.in_process import batch_of, fetch_request, in_process, produce_request
from tests.loops import in_loop
from tests.requests import build

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("metric", "name", "kind"),
    [
        (
            meter("t.server:type=BrokerTopicMetrics,name=MessagesInPerSec", ""),
            "t_server_brokertopicmetrics_messagesin_total",
            MetricKind.COUNTER,
        ),
        (
            gauge("t.coordinator.group:type=GroupMetadataManager,name=NumGroups", ""),
            "t_coordinator_group_groupmetadatamanager_numgroups",
            MetricKind.GAUGE,
        ),
        (
            histogram("t.network:type=RequestMetrics,name=TotalTimeMs", "", "request"),
            "t_network_requestmetrics_totaltimems",
            MetricKind.SUMMARY,
        ),
        (
            attribute("t.server:type=socket-server-metrics", "connection-close-total", ""),
            "t_server_socket_server_metrics_connection_close_total",
            MetricKind.COUNTER,
        ),
        (
            attribute("t.server:type=socket-server-metrics", "connection-count", ""),
            "t_server_socket_server_metrics_connection_count",
            MetricKind.GAUGE,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Metric) else "",
)
def test_names_are_those_of_the_exporter(metric: Metric, name: str, kind: MetricKind) -> None:
    assert (metric.name, metric.kind) == (name, kind)


def test_a_name_belongs_to_one_metric() -> None:
    gauge("t.server:type=Once,name=Only", "")
    with pytest.raises(AssertionError, match="declared twice"):
        gauge("t.server:type=Once,name=Only", "")
    with pytest.raises(AssertionError, match="is no rate"):
        meter("t.server:type=Once,name=Count", "")


def test_times_are_told_to_an_eighth_and_forgotten_after_two_windows() -> None:
    times = RecentTimes()
    for micros in range(1, 10_001):
        times.add(micros / 1e6, 5.0)
    assert times.count == 10_000
    assert times.total_s == pytest.approx(50.005)
    half, most = times.quantiles((0.5, 0.99))
    assert half == pytest.approx(0.005, rel=0.13)
    assert most == pytest.approx(0.0099, rel=0.13)
    times.add(1e9, 5.0 + WINDOW_SECONDS)  # more than fits counts as the most
    assert times.quantiles((0.5,)) == [half]
    times.add(0.0, 5.0 + 2 * WINDOW_SECONDS)
    times.add(0.0, 5.0 + 2 * WINDOW_SECONDS)
    assert times.quantiles((0.5,)) == [0.0]
    assert times.count == 10_003
    assert RecentTimes().quantiles((0.5, 0.99)) == [0.0, 0.0]


def test_totals_keep_what_was_counted_of_topics_that_are_gone() -> None:
    topics = topic_metrics()
    topics.of("a").appended(3, 300)
    topics.of("b").appended(4, 400)
    topics.of("b").refused(1000, KafkaError(ErrorCode.MESSAGE_TOO_LARGE))
    topics.keep({"a"})

    def values(name: str) -> dict[tuple[str, ...], object]:
        return {labels: n for metric, labels, n in topics.samples() if metric.bean.endswith(name)}

    assert values("name=BytesInPerSec") == {(): 700, ("a",): 300}
    assert values("name=BytesRejectedPerSec") == {(): 1000, ("a",): 0}
    assert values("name=ReplicationBytesInPerSec") == {(): 0}
    assert values("name=FailedProduceRequestsPerSec") == {(): 0, ("a",): 0}
    topics.of("b").appended(1, 10)
    assert values("name=MessagesInPerSec") == {(): 8, ("a",): 3, ("b",): 1}


def test_refused_batches_are_counted_by_what_is_wrong_with_them() -> None:
    topics = topic_metrics()
    counters = topics.of("a")
    counters.refused(10, KafkaError(ErrorCode.CORRUPT_MESSAGE))
    counters.refused(10, KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    messages = {0: "no key", 1: "too old", 2: "no key"}
    counters.refused(10, RecordsRefused(ErrorCode.INVALID_TIMESTAMP, messages, 3, without_key=2))
    assert (counters.invalid_checksums, counters.records_without_key) == (1, 2)
    assert (counters.produce_requests, counters.produce_failures) == (3, 2)


def test_bytes_for_replicas_that_a_reassignment_adds_are_counted_apart() -> None:
    counters = topic_metrics().of("a")
    for size_bytes, is_reassignment in ((100, False), (20, True)):
        counters.replicated(size_bytes, is_reassignment=is_reassignment)
        counters.read(
            size_bytes, is_failure=False, is_follower=True, is_reassignment=is_reassignment
        )
    assert (counters.replication_bytes_in, counters.reassignment_bytes_in) == (120, 20)
    assert (counters.replication_bytes_out, counters.reassignment_bytes_out) == (120, 20)


def made(kind: MetricKind, name: str, *labels: str) -> Metric:
    """A metric that is not in the generated documentation."""
    return Metric(bean="", name=name, kind=kind, labels=labels, says="what it is", ours=True)


def test_the_text_is_what_prometheus_reads() -> None:
    size = made(MetricKind.GAUGE, "own_size", "topic", "partition")
    count = made(MetricKind.COUNTER, "own_things_total", "topic")
    time = made(MetricKind.SUMMARY, "own_timems", "request")

    def source() -> Iterator[MetricSample]:
        yield size, ('a"b\\c\nd', "7"), 1.5
        yield count, (), 12
        yield count, ("a",), 12
        yield time, ("Fetch",), Summary(3, 4.5, (("0.50", 1.0), ("0.99", 2.0)))

    metrics = Metrics()
    metrics.add_source(source)
    text, content_type = asyncio.run(text_of(metrics.samples, ""))
    assert content_type.split(";")[0] == "text/plain"
    families = {f.name: f for f in text_string_to_metric_families(text.decode())}

    def samples(name: str) -> list[tuple[str, dict[str, str], float]]:
        return [(s.name, s.labels, s.value) for s in families[name].samples]

    assert families["own_size"].documentation == "what it is"
    assert samples("own_size") == [("own_size", {"topic": 'a"b\\c\nd', "partition": "7"}, 1.5)]
    assert samples("own_things") == [
        ("own_things_total", {}, 12.0),
        ("own_things_total", {"topic": "a"}, 12.0),
    ]
    assert samples("own_timems") == [
        ("own_timems", {"request": "Fetch", "quantile": "0.50"}, 1.0),
        ("own_timems", {"request": "Fetch", "quantile": "0.99"}, 2.0),
        ("own_timems_count", {"request": "Fetch"}, 3.0),
        ("own_timems_sum", {"request": "Fetch"}, 4.5),
    ]
    assert "process_open_fds" in families


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_texts_of_a_unit_are_joined_as_one(accept: str) -> None:
    size = made(MetricKind.GAUGE, "own_size", "topic")
    count = made(MetricKind.COUNTER, "own_things_total")
    only = made(MetricKind.GAUGE, "own_unit")

    def source(number: int) -> Callable[[], Iterator[MetricSample]]:
        def samples() -> Iterator[MetricSample]:
            yield size, ("a\u2028b",), number
            yield count, (), 10 + number

        return samples

    async def texts() -> list[bytes]:
        found = [await text_of(lambda: iter([(only, (), 3)]), accept)]
        found += [await text_of(source(n), accept, {"node_id": str(n)}) for n in (1, 2)]
        return [text for text, _ in found]

    text = joined(asyncio.run(texts())).decode()
    assert text.count("# TYPE own_size ") == text.count("# HELP own_size ") == 1
    assert text.count("# EOF") == bool(accept) and text.endswith("\n")
    parse = openmetrics_parser if accept else text_string_to_metric_families
    samples = [(s.name, s.labels, s.value) for f in parse(text) for s in f.samples]
    assert [each for each in samples if not each[0].startswith("process_")] == [
        ("own_unit", {}, 3.0),
        ("own_size", {"topic": "a\u2028b", "node_id": "1"}, 1.0),
        ("own_size", {"topic": "a\u2028b", "node_id": "2"}, 2.0),
        ("own_things_total", {"node_id": "1"}, 11.0),
        ("own_things_total", {"node_id": "2"}, 12.0),
    ]
    labels = [labels for name, labels, _ in samples if name == "process_open_fds"]
    assert labels == [{}, {"node_id": "1"}, {"node_id": "2"}]


def test_a_long_reading_gives_way_to_others() -> None:
    many = made(MetricKind.GAUGE, "own_many", "number")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def test() -> None:
        nonlocal turns
        metrics = Metrics()
        metrics.add_source(lambda: ((many, (str(i),), i) for i in range(4 * SAMPLES_AT_ONCE)))
        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        turns = 0
        await collect(metrics.samples)
        task.cancel()
        assert turns >= 4

    asyncio.run(test())


@in_loop
async def test_a_broker_counts_by_topic(tmp_path: Path) -> None:
    async with in_process(tmp_path) as node:
        await node.create("t", 2)
        batch = batch_of([b"x"] * 5)
        await node.ask(produce_request("t", batch, 1), 9)
        await node.ask(produce_request("t", batch, 1), 9)
        await node.ask(fetch_request("t", 0, partition=1), 12)
        seen = {
            (metric.name, *labels): value for metric, labels, value in node.owner.metrics.samples()
        }
        topic = "kafka_server_brokertopicmetrics_"
        assert seen[f"{topic}messagesin_total", "t"] == 10
        assert seen[f"{topic}bytesin_total", "t"] == 2 * len(batch)
        assert seen[f"{topic}bytesout_total", "t"] == 2 * len(batch)
        assert seen[f"{topic}totalfetchrequests_total", "t"] == 1
        assert seen["kafka_log_log_logendoffset", "t", "1"] == 10
        assert seen["kafka_log_log_numlogsegments", "t", "0"] == 1
        assert seen["kafka_server_replicamanager_partitioncount",] >= 2
        assert seen["kafka_server_replicamanager_offlinereplicacount",] == 0
        assert seen["kafka_controller_kafkacontroller_activecontrollercount",] == 1
        assert seen["kafka_server_kafkaserver_brokerstate",] == 3


@in_loop
async def test_a_broker_counts_the_errors_of_elements_too(tmp_path: Path) -> None:
    async with in_process(tmp_path) as node:
        await node.create("t")
        batch = batch_of([b"x"])
        for partition in (0, 1, 1):
            await node.ask(produce_request("t", batch, partition), 9)
        await node.ask(fetch_request("t", 0, partition=1), 12)
        wanted = build(ListOffsetsRequest, replica_id=-1, name="t", partition_index=1, timestamp=-1)
        await node.ask(wanted, 7)
        await node.ask(build(MetadataRequest, name="absent", allow_auto_topic_creation=False), 12)
        seen = {
            labels: value
            for metric, labels, value in node.owner.metrics.samples()
            if metric.name == "kafka_network_requestmetrics_errors_total"
        }
        code = "UNKNOWN_TOPIC_OR_PARTITION"
        assert seen == {
            ("Produce", code): 2,
            ("Fetch", code): 1,
            ("FetchConsumer", code): 1,
            ("ListOffsets", code): 1,
            ("Metadata", code): 1,
        }


def test_the_documentation_is_generated() -> None:
    # In a process of its own: these tests declare metrics, too.
    command = [sys.executable, "-m", "broker.metrics_doc"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert (ROOT / "docs" / "reference" / "metrics.md").read_text() == done.stdout, (
        "run: python -m broker.metrics_doc > docs/reference/metrics.md"
    )
