"""What a running broker shows of itself: its metrics by name, its log by line."""

import json
import re
from pathlib import Path

from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from kafka_ds.protocol.messages import DeleteTopicsRequest, MetadataRequest
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic
from tests.integration.raw_client import RawClient
from tests.processes import running_broker, wait_until
from tests.topics import create_topic

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
# Shown where there is something to show: an error, another broker's partitions, a coordinator's reading at a start,
# clients with quotas, share partitions and their coordinator, a unit of brokers, a read-only broker.
SHOWN_IF_ANY = re.compile(
    "requestmetrics_errors_total|kafka_server_fetcher|_partition_load_time_|logmanager_recoverydropped|invalidmessagebytes$"
    "|kafka_server_(controllermutation|fetch|produce|request)_"
    "|sharepartitionmetrics_(inflight|fetchlock)|sharegroupmetrics_(request)?topicpartitions"
    "|share_coordinator_metrics_last_pruned_offset|deadletterqueue|brokerunit|readreplica|memorypool|authorizer"
)


def documented() -> dict[str, str]:
    """Kind by name."""
    row = re.compile(r"^- \*\*`([a-z_0-9]+)`\*\*.*<br>\*(\w+)", re.MULTILINE)
    kinds = dict(row.findall(DOCUMENTATION.read_text()))
    assert len(kinds) > 50
    return {
        name: "summary" if kind == "histogram" else kind
        for name, kind in kinds.items()
        if not SHOWN_IF_ANY.search(name)
    }


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(120) == 0


def consume_in_a_group(bootstrap: str, topic: str, group: str, count: int) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    seen = 0
    while seen < count:
        message = consumer.poll(120)
        assert message is not None and message.error() is None
        seen += 1
    consumer.commit(asynchronous=False)
    consumer.close()


def test_what_is_documented_is_shown_and_nothing_else(tmp_path: Path, free_port: int) -> None:
    with running_broker(tmp_path, {"metrics.port": free_port}) as broker:
        create_topic(broker.bootstrap, "t")
        produce(broker.bootstrap, "t", 7)
        consume_in_a_group(broker.bootstrap, "t", "g", 7)
        families = list(text_string_to_metric_families(broker.metrics()))
    kinds = {
        f.name + "_total" if f.type == "counter" else f.name: f.type
        for f in families
        if not f.name.startswith("process_")
    }
    assert {n: kind for n, kind in kinds.items() if not SHOWN_IF_ANY.search(n)} == documented()
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    topic = ("topic", "t")
    assert values["kafka_server_brokertopicmetrics_messagesin_total", topic] == 7
    assert values["kafka_server_brokertopicmetrics_messagesin_total",] >= 7
    assert values["kafka_server_brokertopicmetrics_bytesout_total", topic] > 0
    assert values["kafka_log_log_logendoffset", ("partition", "0"), topic] == 7
    assert values["kafka_coordinator_group_groupmetadatamanager_numoffsets",] == 1
    assert values["kafka_server_group_coordinator_metrics_offset_commit_count",] >= 1
    time = "kafka_network_requestmetrics_totaltimems"
    produced = ("request", "Produce")
    assert values[f"{time}_count", produced] >= 1
    assert 0 < values[time, ("quantile", "0.99"), produced] <= values[f"{time}_sum", produced] * 2
    assert values["process_open_fds",] > 0


def test_a_structured_log_tells_what_was_done(tmp_path: Path) -> None:
    settings = {
        "log.format": "json",
        "lake.max.lag.ms": 200,
        "lake.start.delay.ms": 0,
    }
    with running_broker(tmp_path, settings) as broker:
        create_topic(broker.bootstrap, "t", partitions=3)
        produce(broker.bootstrap, "t", 7)
        consume_in_a_group(broker.bootstrap, "t", "g", 7)

        def lines() -> list[dict[str, object]]:
            return [json.loads(line) for line in broker.log_file.read_text().splitlines()]

        wait_until(
            "the copy to be told of",
            lambda: any(
                str(line["message"]).startswith("Copied t to remote storage:") for line in lines()
            ),
        )
        with RawClient(broker.bootstrap) as client:
            client.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 5)
            wanted = [MetadataRequestTopic(name="t")]
            client.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 12)
    for line in lines():
        assert {"time", "level", "logger", "message"} <= line.keys()
    told = {str(line["message"]): line for line in lines()}
    assert told["topic t was created with 3 partitions"]["topic"] == "t"
    assert told["topic t was deleted"]["topic"] == "t"
    generation = told["Stabilized group g generation 1 with 1 members"]
    assert (generation["group"], generation["generation"]) == ("g", 1)
    assert generation["level"] == "INFO"
    assert list(told)[-1] == "shut down completed"
