"""Apache Kafka's own tools on a cluster of ours: their effects are checked in the cluster's metadata.

One cluster for all of these tests; each leaves it with three live brokers.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config.access import STANDARD_AUTHORIZER
from broker.metadata.events import PartitionRegistration
from broker.metadata.image import MetadataImage
from broker.metadata.log import MetadataLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.protocol.errors import ErrorCode
from tests.in_process import batch_of, produce_request
from tests.integration.raw_client import RawClient
from tests.peer.jvm import TOOLS, Jvm, ToolFailed
from tests.processes import BrokerCluster, BrokerProcess, cluster, wait_until

pytestmark = [pytest.mark.jars, pytest.mark.timeout(240)]

SETTINGS = {
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": 3_000,
    "replica.fetch.backoff.ms": 100,
    # Brokers, and whoever else says nothing of itself, may do all: nothing but the asking is different.
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}
PATIENCE_S = 120


class ClusterTools:
    """Three brokers, the tools' command lines, and what the cluster has decided."""

    def __init__(self, brokers: BrokerCluster, jvm: Jvm, folder: Path) -> None:
        self.brokers = brokers
        self.jvm = jvm
        self.folder = folder

    def run(self, name: str, *words: str) -> str:
        """The output of one of Kafka's tools, which is given all brokers."""
        return self.jvm.run(f"{TOOLS}.{name}", *words, "--bootstrap-server", self.brokers.bootstrap)

    def run_first(self, name: str, *words: str) -> str:
        """The same for a tool that takes its options before the word that says what to do."""
        return self.jvm.run(f"{TOOLS}.{name}", "--bootstrap-server", self.brokers.bootstrap, *words)

    def image(self) -> MetadataImage:
        return MetadataLog(LocalStore(str(self.brokers[1].overrides["lake.uri"]))).load()

    def partition(self, topic: str, index: int = 0) -> PartitionRegistration:
        return self.image().topics[topic].partitions[index]

    def until(self, what: str, condition: object) -> None:
        wait_until(what, condition, timeout_s=PATIENCE_S, every_s=0.1)

    def is_in_sync(self, topic: str, *node_ids: int) -> bool:
        partitions = self.image().topics[topic].partitions.values()
        return all(set(each.isr) == set(node_ids) for each in partitions)

    def others(self) -> list[int]:
        """The brokers that are not the controller: they can stop without an election of another."""
        return [each for each in sorted(self.brokers.brokers) if each != self.image().controller_id]

    def start_all(self) -> None:
        self.brokers.start()
        self.until("all unfenced", lambda: not any(b.fenced for b in self.image().brokers.values()))

    def produce(self, node_id: int, topic: str, value: bytes = b"v") -> int:
        """The error code of a record sent to this broker, for its own acknowledgement."""
        with RawClient(self.brokers[node_id].bootstrap) as client:
            answer = client.ask(produce_request(topic, batch_of([value]), acks=1), 9)
        code: int = answer.responses[0].partition_responses[0].error_code
        return code

    def file(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return str(path)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, jvm: Jvm) -> Iterator[ClusterTools]:
    folder = tmp_path_factory.mktemp("cluster-tools")
    with cluster(folder, 3, SETTINGS) as brokers:
        yield ClusterTools(brokers, jvm, folder)
    for broker in brokers.brokers.values():
        assert "Traceback" not in broker.log_file.read_text()


def rows(told: str, topic: str) -> list[dict[str, str]]:
    """The lines of partitions that `TopicCommand --describe` prints."""
    lines = [
        line for line in told.splitlines() if re.search(rf"\bTopic: {topic}\tPartition:", line)
    ]
    return [
        {
            word.split(":", 1)[0].strip(): word.split(":", 1)[1].strip()
            for word in line.split("\t")
            if ":" in word
        }
        for line in lines
    ]


def numbers(words: str) -> set[int]:
    return {int(word) for word in words.split(",") if word.strip()}


def test_topics_with_replicas_are_made_grown_and_told_as_they_are(tools: ClusterTools) -> None:
    config = ("--config", "min.insync.replicas=2")
    size = ("--partitions", "3", "--replication-factor", "3")
    tools.run("TopicCommand", "--create", "--topic", "three", *size, *config)
    tools.until("all in sync", lambda: tools.is_in_sync("three", 1, 2, 3))
    told = tools.run("TopicCommand", "--describe", "--topic", "three")
    assert "ReplicationFactor: 3" in told
    for row in rows(told, "three"):
        decided = tools.partition("three", int(row["Partition"]))
        assert int(row["Leader"]) == decided.leader
        assert tuple(map(int, row["Replicas"].split(","))) == decided.replicas
        assert numbers(row["Isr"]) == {1, 2, 3}
        assert (row["Elr"], row["LastKnownElr"]) == ("", "")
    tools.run("TopicCommand", "--alter", "--topic", "three", "--partitions", "5")
    grown = tools.image().topics["three"].partitions
    assert [set(each.replicas) for each in grown.values()] == [{1, 2, 3}] * 5
    with pytest.raises(ToolFailed, match=r"InvalidReplicationFactorException|replication factor"):
        tools.run("TopicCommand", "--create", "--topic", "four", "--replication-factor", "4")
    assert "four" not in tools.image().topics


def test_what_lacks_replicas_is_told(tools: ClusterTools) -> None:
    config = ("--config", "min.insync.replicas=2")
    size = ("--partitions", "2", "--replication-factor", "3")
    tools.run("TopicCommand", "--create", "--topic", "lacking", *size, *config)
    tools.until("all in sync", lambda: tools.is_in_sync("lacking", 1, 2, 3))

    def told(which: str) -> list[dict[str, str]]:
        return rows(tools.run("TopicCommand", "--describe", which), "lacking")

    assert not told("--under-replicated-partitions")
    first, second = tools.others()
    last = tools.image().controller_id
    tools.brokers[first].kill()
    tools.until("its end", lambda: tools.is_in_sync("lacking", second, last))
    assert [numbers(row["Isr"]) for row in told("--under-replicated-partitions")] == (
        [{second, last}] * 2
    )
    assert len(told("--at-min-isr-partitions")) == 2
    assert not told("--under-min-isr-partitions")
    tools.brokers[second].kill()
    tools.until("its end", lambda: tools.is_in_sync("lacking", last))
    (row, _) = told("--under-min-isr-partitions")
    assert (row["Leader"], row["Isr"]) == (str(last), str(last))
    # It has everything that was committed: nothing is while too few are in sync (KIP-966).
    assert numbers(row["Elr"]) == set(tools.partition("lacking").elr) == {second}
    assert not told("--unavailable-partitions")
    tools.start_all()
    tools.until("all in sync", lambda: tools.is_in_sync("lacking", 1, 2, 3))
    assert not told("--under-replicated-partitions")


def moves(topic: str, replicas: list[int]) -> dict[str, object]:
    partitions = [{"topic": topic, "partition": 0, "replicas": replicas}]
    return {"version": 1, "partitions": partitions}


def test_partitions_are_moved_with_a_throttle_that_is_taken_away(tools: ClusterTools) -> None:
    command = "reassign.ReassignPartitionsCommand"
    tools.run("TopicCommand", "--create", "--topic", "moved", "--replica-assignment", "1:2")
    tools.until("in sync", lambda: tools.is_in_sync("moved", 1, 2))
    for _ in range(5):
        assert tools.produce(1, "moved") == ErrorCode.NONE
    topics = tools.file("topics.json", {"version": 1, "topics": [{"topic": "moved"}]})
    generate = ("--topics-to-move-json-file", topics, "--broker-list", "2,3", "--generate")
    told = tools.run(command, *generate)
    proposed = json.loads(told[told.index("Proposed") :].split("\n", 1)[1])
    assert set(proposed["partitions"][0]["replicas"]) == {2, 3}
    plan = ("--reassignment-json-file", tools.file("plan.json", moves("moved", [3, 2])))
    tools.run(command, *plan, "--execute", "--throttle", "1000000")
    rates = [tools.image().broker_configs[str(each)] for each in (1, 2, 3)]
    assert [each["leader.replication.throttled.rate"] for each in rates] == ["1000000"] * 3
    tools.until("the move", lambda: tools.partition("moved").replicas == (3, 2))
    tools.until("in sync", lambda: tools.is_in_sync("moved", 2, 3))
    told = tools.run(command, *plan, "--verify")
    assert "Reassignment of partition moved-0 is completed." in told
    assert "throttled" not in repr(tools.image().broker_configs)
    assert "throttled" not in repr(tools.image().topics["moved"].configs)
    tools.until("its new leader", lambda: tools.produce(3, "moved") == ErrorCode.NONE)


def test_a_move_under_way_is_listed_and_cancelled(tools: ClusterTools) -> None:
    command = "reassign.ReassignPartitionsCommand"
    to, here = tools.others()
    tools.run("TopicCommand", "--create", "--topic", "stuck", "--replica-assignment", str(here))
    tools.until("its leader", lambda: tools.produce(here, "stuck") == ErrorCode.NONE)
    for _ in range(8):  # More than one fetch holds: the first is let through at any rate.
        assert tools.produce(here, "stuck", b"v" * 900_000) == ErrorCode.NONE
    plan = ("--reassignment-json-file", tools.file("stuck.json", moves("stuck", [to])))
    tools.run(command, *plan, "--execute", "--throttle", "1")
    assert tools.partition("stuck").adding_replicas == (to,)
    listed = tools.run(command, "--list")
    assert re.search(rf"stuck-0: replicas: {to},{here}\. adding: {to}\. removing: {here}", listed)
    assert "is still in progress" in tools.run(command, *plan, "--verify", "--preserve-throttles")
    tools.run(command, *plan, "--cancel")
    now = tools.partition("stuck")
    assert (now.replicas, now.adding_replicas, now.removing_replicas) == ((here,), (), ())
    assert "No partition reassignments found." in tools.run(command, "--list")
    assert "throttled" not in repr(tools.image().broker_configs)


def test_leaders_are_elected_preferred_and_unclean(tools: ClusterTools) -> None:
    command = "LeaderElectionCommand"
    first, second = tools.others()
    replicas = f"{first}:{second}"
    tools.run("TopicCommand", "--create", "--topic", "led", "--replica-assignment", replicas)
    tools.until("in sync", lambda: tools.is_in_sync("led", first, second))
    tools.brokers[first].stop()
    tools.until("the other one", lambda: tools.partition("led").leader == second)
    tools.start_all()
    tools.until("in sync", lambda: tools.is_in_sync("led", first, second))
    one = ("--topic", "led", "--partition", "0")
    told = tools.run(command, "--election-type", "preferred", *one)
    assert "Successfully completed leader election (PREFERRED)" in told
    assert tools.partition("led").leader == first

    tools.brokers[second].stop()
    tools.until("out of sync", lambda: tools.is_in_sync("led", first))
    assert tools.produce(first, "led") == ErrorCode.NONE
    tools.brokers[first].kill()
    tools.until("no leader", lambda: tools.partition("led").leader == -1)
    tools.brokers[second].start()
    assert tools.partition("led").leader == -1
    told = tools.run(command, "--election-type", "unclean", *one)
    assert "Successfully completed leader election (UNCLEAN)" in told
    assert tools.partition("led").leader == second
    tools.start_all()
    tools.until("both in sync", lambda: tools.is_in_sync("led", first, second))


def test_a_broker_that_is_gone_is_unregistered(tools: ClusterTools) -> None:
    fourth = BrokerProcess(tools.folder / "broker-4", {**tools.brokers[1].overrides, "node.id": 4})
    fourth.overrides["log.dirs"] = fourth.data
    fourth.overrides["listeners"] = "PLAINTEXT://127.0.0.1:0"
    fourth.start()
    port = fourth.bootstrap.split(":")[1]
    try:
        endpoints = tools.run("ClusterTool", "list-endpoints")
        ports = {str(n): b.bootstrap.split(":")[1] for n, b in tools.brokers.brokers.items()}
        assert dict(re.findall(r"^(\d+)\s+127\.0\.0\.1\s+(\d+)", endpoints, re.MULTILINE)) == {
            **ports,
            "4": port,
        }
    finally:
        fourth.stop()
    told = tools.run("ClusterTool", "list-endpoints", "--include-fenced-brokers")
    assert re.search(rf"^4\s+127\.0\.0\.1\s+{port}\s.*fenced", told, re.MULTILINE)
    tools.run("ClusterTool", "unregister", "--id", "4")
    assert sorted(tools.image().brokers) == [1, 2, 3]


def test_the_quorum_is_the_controller_and_features_are_those_that_are_set(
    tools: ClusterTools,
) -> None:
    controller = tools.image().controller_id
    status = tools.run_first("MetadataQuorumCommand", "describe", "--status")
    assert re.search(rf"^LeaderId:\s+{controller}$", status, re.MULTILINE)
    assert re.search(rf"^LeaderEpoch:\s+{tools.image().controller_epoch}$", status, re.MULTILINE)
    lines = tools.run_first("MetadataQuorumCommand", "describe", "--replication").splitlines()
    roles = {int(line.split()[0]): line.split()[-1] for line in lines if line[:1].isdigit()}
    assert roles == {n: "Leader" if n == controller else "Observer" for n in (1, 2, 3)}
    told = tools.run_first("FeatureCommand", "describe")
    levels = dict(
        re.findall(r"^Feature: (\S+)\s.*FinalizedVersionLevel: (\S+)", told, re.MULTILINE)
    )
    assert levels["eligible.leader.replicas.version"] == "1"
    assert levels["kraft.version"] == "1"
    lower = ("downgrade", "--feature", "eligible.leader.replicas.version=0")
    tools.run_first("FeatureCommand", *lower)
    assert tools.image().features["eligible.leader.replicas.version"] == 0
    # Of all features, those that cannot change among them.
    tools.run_first("FeatureCommand", "upgrade", "--release-version", "4.4")
    assert tools.image().features["eligible.leader.replicas.version"] == 1


def test_acls_quotas_and_users_are_made_shown_and_taken_away(tools: ClusterTools) -> None:
    acls, configs = f"{TOOLS}.AclCommand", f"{TOOLS}.ConfigCommand"

    def run(command: str, *words: str) -> str:
        return tools.jvm.run(command, "--bootstrap-server", tools.brokers.bootstrap, *words)

    who = (
        "--allow-principal",
        "User:alice",
        "--topic",
        "team-",
        "--resource-pattern-type",
        "prefixed",
    )
    run(acls, "--add", *who, "--producer")
    tools.until("the ACLs are there", lambda: len(tools.image().security.acls) == 3)
    match = ("--list", "--topic", "team-x", "--resource-pattern-type", "match")
    tools.until("they are shown", lambda: "User:alice" in run(acls, *match))
    users = ("--entity-type", "users", "--entity-name", "alice")
    scram = "SCRAM-SHA-256=[iterations=4096,password=hush]"
    for change in ("producer_byte_rate=1024", scram):
        run(configs, "--alter", "--add-config", change, *users)
    image = tools.image().security
    assert list(image.quotas.values()) == [{"producer_byte_rate": 1024.0}]
    assert list(image.credentials) == [("alice", "SCRAM-SHA-256")]
    tools.until(
        "they are shown", lambda: "producer_byte_rate=1024.0" in run(configs, "--describe", *users)
    )
    tools.until(
        "so is the user",
        lambda: "SCRAM-SHA-256=iterations=4096" in run(configs, "--describe", *users),
    )
    for name in ("producer_byte_rate", "SCRAM-SHA-256"):
        run(configs, "--alter", "--delete-config", name, *users)
    run(acls, "--remove", "--force", *who, "--producer")
    tools.until("nothing is left", lambda: not tools.image().security.acls)
    left = tools.image().security
    assert (left.quotas, left.credentials) == ({}, {})
