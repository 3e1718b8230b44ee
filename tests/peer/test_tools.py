"""Apache Kafka's own tools against a broker of ours: what they did is looked at from another side than theirs.

A tool's line of success is not a result: each test asks the broker itself, through the raw protocol or its files.
"""

import json
import re
from pathlib import Path

import pytest

import broker.handlers  # noqa: F401 - registers what is served
from broker.protocol_doc import NOT_SERVED
from broker.registry import REGISTRY
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import OWN_KEYS_FROM, MetadataRequest
from kafka_ds.protocol.messages.offsets import EARLIEST, LATEST
from kafka_ds.protocol.types import uuid_text
from tests.in_process import batch_of, fetch_request, produce_request, records_of
from tests.peer.jvm import TOOLS, ToolFailed
from tests.peer.tools import TOPIC, Tools
from tests.processes import wait_until

pytestmark = pytest.mark.jars


def test_cluster_tool_finds_the_highest_version_of_all_that_is_served(tools: Tools) -> None:
    """KIP-1220; of client metrics nothing is advertised while nobody subscribes."""
    told = tools.run("ClusterTool", "api-versions")
    found = re.findall(r"(\w+)\((\d+)\): (?:(?:\d+ to )?(\d+) \[usable: (\d+)\]|UNSUPPORTED)", told)
    unsupported = {int(key) for _, key, highest, _ in found if not highest}
    assert unsupported - {71, 72} <= NOT_SERVED.keys()
    usable = {int(key): int(version) for _, key, _, version in found if version}
    served = (each.enabled(unstable_versions=False) for each in REGISTRY)
    assert usable == {
        each.api_key: each.highest
        for each in served
        if each.api_key < OWN_KEYS_FROM and each.api_key in usable
    }
    assert len(usable) > 70


def test_topic_command_makes_grows_describes_and_deletes(tools: Tools) -> None:
    command = "TopicCommand"
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
    command = "ConfigCommand"
    create = ("--create", "--topic", "set", "--config", "retention.ms=5000")
    tools.run("TopicCommand", *create)
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


def test_config_command_changes_loggers(tools: Tools) -> None:
    command = "ConfigCommand"
    words = ("--entity-type", "broker-loggers", "--entity-name", "1")
    tools.run(command, "--alter", *words, "--add-config", "broker.server=WARN")
    told = tools.run(command, "--describe", *words)
    assert "broker.server=WARN sensitive=false synonyms={}" in told
    tools.run(command, "--alter", *words, "--delete-config", "broker.server")
    assert "broker.server=INFO" in tools.run(command, "--describe", *words)


def test_config_command_changes_rates_of_addresses_and_settings_of_groups(tools: Tools) -> None:
    """Line by line what it prints with Apache Kafka 4.4.0."""
    command, rate = "ConfigCommand", "connection_creation_rate"

    def run(*words: str) -> list[str]:
        return [line.strip() for line in tools.run(command, *words).splitlines() if line.strip()]

    address = ("--entity-type", "ips", "--entity-name", "127.0.0.9")
    said = run("--alter", *address, "--add-config", f"{rate}=5")
    assert said == ["Completed updating config for ip 127.0.0.9."]
    shown = f"Quota configs for ip '127.0.0.9' are {rate}=5.0"
    wait_until("the rate", lambda: run("--describe", *address) == [shown])
    run("--alter", *address, "--delete-config", rate)
    wait_until("no rate", lambda: run("--describe", *address) == [])
    everyone = ("--entity-type", "ips", "--entity-default")
    run("--alter", *everyone, "--add-config", f"{rate}=1000")
    shown = f"Quota configs for the default ip are {rate}=1000.0"
    wait_until("the rate of all", lambda: run("--describe", "--entity-type", "ips") == [shown])
    run("--alter", *everyone, "--delete-config", rate)

    group = ("--entity-type", "groups", "--entity-name", "set")
    key = "consumer.session.timeout.ms"
    run("--alter", *group, "--add-config", f"{key}=50000,share.record.lock.duration.ms=20000")
    shown = (
        f"{key}=50000 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{key}=50000, "
        f"DEFAULT_CONFIG:group.{key}=45000}}"
    )
    assert run("--describe", *group)[:2] == ["Dynamic configs for group set are:", shown]
    assert shown in run("--describe", *group, "--all")
    run("--alter", *group, "--delete-config", key)
    _, rest = run("--describe", *group)
    assert rest.startswith("share.record.lock.duration.ms=20000 ")
    assert "Dynamic configs for group set are:" in run("--describe", "--entity-type", "groups")
    for wrong in ("nope=1", f"{key}=1"):
        with pytest.raises(ToolFailed, match="InvalidConfigurationException"):
            run("--alter", *group, "--add-config", wrong)


def test_offsets_and_deleted_records(tools: Tools, tmp_path: Path) -> None:
    tools.run("TopicCommand", "--create", "--topic", "cut", "--partitions", "2")
    tools.produce("cut", 10, partition=0)
    tools.produce("cut", 4, partition=1)
    shell = "GetOffsetShell"
    assert tools.run(shell, "--topic", "cut").split() == ["cut:0:10", "cut:1:4"]

    wanted = [("cut", 0, 7), ("cut", 1, -1)]
    file = tmp_path / "offsets.json"
    partitions = [{"topic": t, "partition": p, "offset": o} for t, p, o in wanted]
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    tools.run("DeleteRecordsCommand", "--offset-json-file", str(file))
    assert [tools.offset("cut", index, EARLIEST) for index in (0, 1)] == [7, 4]
    assert [tools.offset("cut", index, LATEST) for index in (0, 1)] == [10, 4]
    below = tools.client.ask(fetch_request("cut", 6), 12).responses[0].partitions[0]
    assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    rest = tools.client.ask(fetch_request("cut", 7), 12).responses[0].partitions[0]
    values = [(record.offset, record.value) for record in records_of(rest.records)]
    assert [entry for entry in values if entry[0] >= 7] == [(7, b"7"), (8, b"8"), (9, b"9")]
    # The last two are of tiered storage, which has nothing of it yet.
    for time, told in (
        ("earliest", ["cut:0:7", "cut:1:4"]),
        # Deleted or not: as in Kafka the newest time counts.
        ("-3", ["cut:0:9", "cut:1:3"]),
        ("-4", ["cut:0:7", "cut:1:4"]),
        ("-5", []),
        ("-6", ["cut:0:7", "cut:1:4"]),
    ):
        assert tools.run(shell, "--topic", "cut", "--time", time).split() == told, time


def test_log_directories_are_those_on_disk(tools: Tools) -> None:
    tools.run("TopicCommand", "--create", "--topic", "sized")
    tools.produce("sized", 100)
    told = tools.run("LogDirsCommand", "--describe", "--topic-list", "sized")
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
    assert cluster_id in tools.run("ClusterTool", "cluster-id")
    port = tools.broker.bootstrap.split(":")[1]
    endpoints = tools.run("ClusterTool", "list-endpoints")
    assert re.search(rf"^1\s+127\.0\.0\.1\s+{port}\s", endpoints, re.MULTILINE)
    # This tool takes its options before the word that says what to do.
    words = ("--bootstrap-server", tools.broker.bootstrap, "describe", "--status")
    quorum = tools.jvm.run(f"{TOOLS}.MetadataQuorumCommand", *words)
    assert cluster_id in quorum
    assert re.search(r"^LeaderId:\s+1$", quorum, re.MULTILINE)
    found = re.search(r"^HighWatermark:\s+(\d+)$", quorum, re.MULTILINE)
    assert found
    # The last decision is the commit below it; commits that only add rows to the table do not count.
    commits = tools.broker.lake / "__cluster_metadata" / "_delta_log"
    assert '"events"' in (commits / f"{int(found[1]) - 1:020d}.json").read_text()
    later = [path for path in commits.glob("*.json") if path.stem > f"{int(found[1]) - 1:020d}"]
    assert not any('"events"' in path.read_text() for path in later)
