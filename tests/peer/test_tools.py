"""Apache Kafka's own tools against a broker of ours: what they did is looked at from another side than theirs.

A tool's line of success is not a result: each test asks the broker itself, through the raw protocol or its files.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ds.wire.errors import ErrorCode
from kafka_ds.wire.messages import DescribeConfigsRequest, ListOffsetsRequest, MetadataRequest
from kafka_ds.wire.messages.cluster import MetadataRequestTopic, MetadataResponseTopic
from kafka_ds.wire.messages.configs import DescribeConfigsResource
from kafka_ds.wire.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from kafka_ds.wire.types import uuid_text
from tests.in_process import batch_of, fetch_request, produce_request, records_of
from tests.integration.raw_client import RawClient
from tests.peer.apache_kafka import tool
from tests.processes import BrokerProcess, running_broker

pytestmark = [pytest.mark.jars, pytest.mark.slow]

TOOLS = "org.apache.kafka.tools"
TOPIC, BROKER = 2, 4
EARLIEST, LATEST = -2, -1


class Tools:
    """A broker, a connection to it, and the tools' command lines."""

    def __init__(self, broker: BrokerProcess, client: RawClient, jar_folder: Path) -> None:
        self.broker = broker
        self.client = client
        self._jars = jar_folder

    def run(self, name: str, *words: str) -> str:
        """What a tool prints."""
        return tool(self._jars, name, *words, "--bootstrap-server", self.broker.bootstrap)

    def topic(self, name: str) -> MetadataResponseTopic:
        """What the broker says of a topic, without making it."""
        wanted = [MetadataRequestTopic(name=name)]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        found: MetadataResponseTopic = self.client.ask(request, 12).topics[0]
        return found

    def settings(self, kind: int, name: str) -> dict[str, tuple[str | None, int]]:
        """Value and source of each setting."""
        wanted = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        response = self.client.ask(DescribeConfigsRequest(resources=[wanted]), 4)
        return {each.name: (each.value, each.config_source) for each in response.results[0].configs}

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        """Where a partition begins or ends."""
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
        response = self.client.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        found: int = response.topics[0].partitions[0].offset
        return found

    def produce(self, topic: str, count: int, partition: int = 0) -> None:
        batch = batch_of([b"%d" % number for number in range(count)])
        response = self.client.ask(produce_request(topic, batch, partition), 9)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, kafka_jars: Path) -> Iterator[Tools]:
    folder = tmp_path_factory.mktemp("tools")
    with (
        running_broker(folder, {"auto.create.topics.enable": "false"}) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        yield Tools(broker, client, kafka_jars)
    assert "Traceback" not in broker.log_file.read_text()


def test_topic_command_makes_grows_describes_and_deletes(tools: Tools) -> None:
    command = f"{TOOLS}.TopicCommand"
    create = ("--create", "--topic", "made", "--partitions", "2", "--config", "retention.ms=5000")
    tools.run(command, *create)
    made = tools.topic("made")
    assert (made.error_code, len(made.partitions)) == (0, 2)
    assert tools.settings(TOPIC, "made")["retention.ms"] == ("5000", 1)
    tools.produce("made", 3, partition=1)

    tools.run(command, "--alter", "--topic", "made", "--partitions", "5")
    assert [each.partition_index for each in tools.topic("made").partitions] == [0, 1, 2, 3, 4]
    assert tools.topic("made").topic_id == made.topic_id
    tools.produce("made", 1, partition=4)
    assert tools.offset("made", 1, LATEST) == 3

    told = tools.run(command, "--describe", "--topic", "made")
    assert f"TopicId: {uuid_text(made.topic_id)}" in told
    assert "PartitionCount: 5" in told
    assert "retention.ms=5000" in told
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", told)) == 5

    assert "made" in tools.run(command, "--list").split()
    tools.run(command, "--delete", "--topic", "made")
    assert tools.topic("made").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_config_command_changes_topics_and_brokers(tools: Tools) -> None:
    command = "kafka.admin.ConfigCommand"
    create = ("--create", "--topic", "set", "--config", "retention.ms=5000")
    tools.run(f"{TOOLS}.TopicCommand", *create)
    words = ("--alter", "--entity-type", "topics", "--entity-name", "set")
    tools.run(
        command, *words, "--add-config", "max.message.bytes=90", "--delete-config", "retention.ms"
    )
    found = tools.settings(TOPIC, "set")
    assert found["max.message.bytes"] == ("90", 1)
    assert found["retention.ms"] == (str(7 * 24 * 3_600_000), 5)
    response = tools.client.ask(produce_request("set", batch_of([b"x" * 200])), 9)
    answer = response.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE

    own = ("--alter", "--entity-type", "brokers", "--entity-name", "1")
    tools.run(command, *own, "--add-config", "log.retention.ms=777777")
    everyone = ("--alter", "--entity-type", "brokers", "--entity-default")
    tools.run(command, *everyone, "--add-config", "log.flush.interval.ms=60000")
    found = tools.settings(TOPIC, "set")
    assert found["retention.ms"] == ("777777", 2)
    assert found["flush.ms"] == ("60000", 3)
    told = tools.run(command, "--describe", "--entity-type", "brokers", "--entity-name", "1")
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=777777" in told
    told = tools.run(command, "--describe", "--entity-type", "brokers", "--entity-default")
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.flush.interval.ms=60000" in told
    tools.run(command, *own, "--delete-config", "log.retention.ms")
    tools.run(command, *everyone, "--delete-config", "log.flush.interval.ms")
    found = tools.settings(TOPIC, "set")
    assert (found["retention.ms"][1], found["flush.ms"][1]) == (5, 5)


def test_offsets_and_deleted_records(tools: Tools, tmp_path: Path) -> None:
    tools.run(f"{TOOLS}.TopicCommand", "--create", "--topic", "cut", "--partitions", "2")
    tools.produce("cut", 10, partition=0)
    tools.produce("cut", 4, partition=1)
    shell = f"{TOOLS}.GetOffsetShell"
    assert tools.run(shell, "--topic", "cut").split() == ["cut:0:10", "cut:1:4"]

    wanted = [("cut", 0, 7), ("cut", 1, -1)]
    file = tmp_path / "offsets.json"
    partitions = [{"topic": t, "partition": p, "offset": o} for t, p, o in wanted]
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    tools.run(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(file))
    assert [tools.offset("cut", index, EARLIEST) for index in (0, 1)] == [7, 4]
    assert [tools.offset("cut", index, LATEST) for index in (0, 1)] == [10, 4]
    below = tools.client.ask(fetch_request("cut", 6), 12).responses[0].partitions[0]
    assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    rest = tools.client.ask(fetch_request("cut", 7), 12).responses[0].partitions[0]
    values = [(record.offset, record.value) for record in records_of(rest.records)]
    assert [entry for entry in values if entry[0] >= 7] == [(7, b"7"), (8, b"8"), (9, b"9")]
    told = tools.run(shell, "--topic", "cut", "--time", "earliest").split()
    assert told == ["cut:0:7", "cut:1:4"]


def test_log_directories_are_those_on_disk(tools: Tools) -> None:
    tools.run(f"{TOOLS}.TopicCommand", "--create", "--topic", "sized")
    tools.produce("sized", 100)
    told = tools.run(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", "sized")
    line = next(line for line in told.splitlines() if line.startswith("{"))
    (directory,) = json.loads(line)["brokers"][0]["logDirs"]
    assert Path(directory["logDir"]) == tools.broker.data
    (partition,) = directory["partitions"]
    segments = (tools.broker.data / "sized-0").glob("*.log")
    assert partition["partition"] == "sized-0"
    assert partition["size"] == sum(file.stat().st_size for file in segments) > 0
    assert (partition["offsetLag"], partition["isFuture"]) == (0, False)


def test_cluster_and_quorum(tools: Tools) -> None:
    cluster_id = tools.client.ask(MetadataRequest(topics=[]), 12).cluster_id
    assert cluster_id in tools.run(f"{TOOLS}.ClusterTool", "cluster-id")
    port = tools.broker.bootstrap.split(":")[1]
    endpoints = tools.run(f"{TOOLS}.ClusterTool", "list-endpoints")
    assert re.search(rf"^1\s+127\.0\.0\.1\s+{port}\s", endpoints, re.MULTILINE)
    # This tool takes its options before the word that says what to do.
    quorum = tool(
        tools._jars,
        f"{TOOLS}.MetadataQuorumCommand",
        "--bootstrap-server", tools.broker.bootstrap, "describe", "--status",
    )  # fmt: skip
    assert cluster_id in quorum
    assert re.search(r"^LeaderId:\s+1$", quorum, re.MULTILINE)
    found = re.search(r"^HighWatermark:\s+(\d+)$", quorum, re.MULTILINE)
    assert found
    # The last decision is the commit below it; commits that only add rows to the table do not count.
    commits = tools.broker.lake / "__cluster_metadata" / "_delta_log"
    assert '"events"' in (commits / f"{int(found[1]) - 1:020d}.json").read_text()
    later = [path for path in commits.glob("*.json") if path.stem > f"{int(found[1]) - 1:020d}"]
    assert not any('"events"' in path.read_text() for path in later)
