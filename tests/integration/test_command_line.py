"""`kafka-ds` against a broker of ours: topics, records, groups, the cluster; and what a mistake looks like."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ds.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    StreamsGroupHeartbeatRequest,
)
from tests.command_line import CommandLine
from tests.integration.raw_client import RawClient
from tests.integration.secured_broker import PASSWORD, SecuredBroker
from tests.processes import BrokerProcess, cluster, running_broker, wait_until
from tests.requests import build
from tests.unit.coordinator.group.streams_desk import subtopology, topology


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": 1}
    with running_broker(tmp_path_factory.mktemp("cli"), settings) as running:
        yield running


@pytest.fixture
def kafka_ds(broker: BrokerProcess, tmp_path: Path) -> CommandLine:
    return CommandLine(broker.bootstrap, tmp_path)


def test_a_topic_is_created_described_altered_and_deleted(kafka_ds: CommandLine) -> None:
    kafka_ds.ok("topic", "create", "life", "--partitions", "3", "--config", "retention.ms=600000")
    assert kafka_ds.run("topic", "create", "life").complaint == "topic life exists already"
    kafka_ds.ok("topic", "create", "life", "--if-not-exists")
    kafka_ds.ok("topic", "create", "planned", "--dry-run")
    names = [each["name"] for each in kafka_ds.json("topic", "list")]
    assert "life" in names
    assert "planned" not in names
    found = kafka_ds.json("topic", "describe", "life")
    assert found["configs"] == {"retention.ms": "600000"}
    assert [
        (p["partition"], p["leader"], p["isr"], p["end_offset"]) for p in found["partitions"]
    ] == [(each, 1, [1], 0) for each in range(3)]
    kafka_ds.ok("topic", "alter", "life", "--config", "segment.ms=1000", "--partitions", "4")
    kafka_ds.ok("topic", "alter", "life", "--delete-config", "retention.ms")
    found = kafka_ds.json("topic", "describe", "life")
    assert found["configs"] == {"segment.ms": "1000"}
    assert len(found["partitions"]) == 4
    table = kafka_ds.ok("topic", "describe", "life")
    assert "segment.ms  1000" in table
    assert "PARTITION  LEADER" in table
    kafka_ds.ok("topic", "create", "death")
    several = kafka_ds.json("topic", "describe", "life", "death")
    assert [(each["name"], len(each["partitions"])) for each in several] == [
        ("life", 4),
        ("death", 1),
    ]
    table = kafka_ds.ok("topic", "describe", "life", "death")
    assert re.findall(r"^topic +(\w+)$", table, re.MULTILINE) == ["life", "death"]
    told = kafka_ds.run("topic", "describe", "life", "nowhere").complaint
    assert told == "there is no topic nowhere"
    kafka_ds.ok("topic", "delete", "life", "death")
    assert "life" not in [each["name"] for each in kafka_ds.json("topic", "list")]
    assert kafka_ds.run("topic", "delete", "life").complaint == "there is no topic life"


def test_an_internal_topic_is_deleted_with_force_alone(kafka_ds: CommandLine) -> None:
    kafka_ds.ok("topic", "create", "__mine")
    kafka_ds.ok("topic", "delete", "__mine")
    kafka_ds.ok("topic", "create", "noted")
    kafka_ds.ok("produce", "noted", typed="x\n")
    kafka_ds.ok("consume", "noted", "--group", "any", "--max-messages", "1")
    refused = kafka_ds.run("topic", "delete", "noted", "__consumer_offsets")
    assert refused.complaint.startswith("__consumer_offsets is an internal topic: --force")
    kafka_ds.ok("topic", "create", "__kafka_ds_decisions")
    ours = {"__consumer_offsets": True, "__kafka_ds_decisions": True, "noted": False}
    listed = {
        each["name"]: each["internal"] for each in kafka_ds.json("topic", "list", "--internal")
    }
    assert {name: listed[name] for name in ours} == ours
    assert "noted" in kafka_ds.ok("topic", "list")
    assert "__" not in kafka_ds.ok("topic", "list")
    assert re.search(
        r"^__consumer_offsets .* yes$", kafka_ds.ok("topic", "list", "--internal"), re.M
    )
    kafka_ds.ok("topic", "delete", "--force", "__consumer_offsets", "__kafka_ds_decisions")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("topic", "create", "wrong", "--config", "retention.ms=soon"), "retention.ms"),
        (("topic", "create", "wrong", "--config", "retention.ms"), "not of the form key=value"),
        (("topic", "create", "wrong", "--partitions", "0"), "--partitions"),
        (("topic", "create", "a b"), "INVALID_TOPIC_EXCEPTION"),
        (("topic", "create", "wrong", "--replication-factor", "3"), "REPLICATION_FACTOR"),
        (("topic", "describe", "nowhere"), "there is no topic nowhere"),
        (("topic", "alter", "nowhere", "--partitions", "2"), "there is no topic nowhere"),
        (("topic", "alter", "nowhere"), "nothing to change"),
        (("tail", "nowhere"), "there is no topic nowhere"),
        (("tail", "nowhere", "--from", "yesterday"), "'yesterday' is not a position"),
        (("group", "describe", "nobody"), "there is no group nobody"),
        (("group", "delete", "nobody"), "there is no group nobody"),
        (("group", "reset", "nobody", "--to", "end"), "give --topic"),
        (("group", "reset", "nobody", "--to", "end", "--topic", "nowhere"), "no topic nowhere"),
        (("topc", "list"), "No such command 'topc'. Did you mean 'topic'?"),
        (("topic", "list", "--jsn"), "--json"),
        (("topic", "list", "--command-config", "/nowhere"), "/nowhere: no such file or directory"),
        (("topic", "list", "--bootstrap-server", "http//x"), "http//x"),
        (("topic", "list", "--profile", "prod"), "profile prod"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_mistake_is_one_line_and_a_status(
    kafka_ds: CommandLine, words: tuple[str, ...], told: str
) -> None:
    assert told in kafka_ds.run(*words).complaint


def test_lines_become_records_and_come_back(kafka_ds: CommandLine) -> None:
    kafka_ds.ok("topic", "create", "lines", "--partitions", "1")
    kafka_ds.ok("produce", "lines", typed="one\ntwo")  # the last line needs no end
    keyed = b"k:v\nempty:\n\xff:\xfe\nnull:NULL\n"
    words = ("--key-separator", ":", "--header", "by=test", "--null-marker", "NULL")
    kafka_ds.ok("produce", "lines", *words, "--compression", "zstd", typed=keyed)
    found = kafka_ds.records("tail", "lines", "--from", "beginning", "--max-messages", "6")
    assert [(each["offset"], each["key"], each["value"]) for each in found] == [
        (0, None, "one"),
        (1, None, "two"),
        (2, "k", "v"),
        (3, "empty", ""),
        (4, "ff", "fe"),
        (5, "null", None),
    ]
    assert {each["topic"] for each in found} == {"lines"}
    assert {each["partition"] for each in found} == {0}
    assert abs(found[0]["timestamp"] / 1_000 - time.time()) < 3_600
    assert [each["headers"] for each in found[:3:2]] == [[], [{"key": "by", "value": "test"}]]
    assert (found[4]["key_encoding"], found[4]["value_encoding"]) == ("hex", "hex")
    assert "value_encoding" not in found[0]
    (shown,) = kafka_ds.ok(
        "tail", "lines", "--from", "2", "--max-messages", "1", "--hex"
    ).splitlines()
    assert shown.split("  ")[0] == "lines-0@2"
    assert shown.split("  ")[1].endswith("Z")  # the times of records are UTC
    assert shown.split("  ")[2:] == ["6b", "76"]
    both = kafka_ds.run("tail", "lines", "--hex", "--json").complaint
    assert both == "give only one of --json, --values and --hex"
    kafka_ds.run("produce", "lines", "--key-separator", ":", typed="none\n").complaint.index("none")
    assert "no partition 7" in kafka_ds.run("produce", "lines", "--partition", "7").complaint


def test_a_topic_that_produce_does_not_find_is_told(kafka_ds: CommandLine, tmp_path: Path) -> None:
    kafka_ds.ok("topic", "create", "payments-in", "--partitions", "2")
    told = kafka_ds.run("produce", "payment-in", typed="x\n").complaint
    assert told == (
        "there is no topic payment-in, and the brokers do not create it (auto.create.topics.enable): "
        "did you mean payments-in?"
    )
    for words in (("tail",), ("topic", "describe"), ("topic", "delete")):
        told = kafka_ds.run(*words, "payment-in").complaint
        assert told == "there is no topic payment-in: did you mean payments-in?"
    with running_broker(tmp_path, {}) as another:
        creating = CommandLine(another.bootstrap, tmp_path)
        for topic in ("payments-in", "payment-in"):
            done = creating.run("produce", topic, typed="x\n")
            assert done.errors.endswith(f"\n1 record produced to {topic}\n"), done
        assert done.errors.startswith(
            "topic payment-in was created, with 1 partition: did you mean payments-in?\n"
        )


def test_a_file_is_produced_with_a_bar_on_a_terminal(kafka_ds: CommandLine, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("x" * 99 + "\n")
    lines.write_text(lines.read_text() * 20_000)
    leader, follower = pty.openpty()
    kafka_ds.ok("topic", "create", "bulk", "--partitions", "1")
    with lines.open() as typed:
        done = kafka_ds.popen("produce", "bulk", stdin=typed, stderr=follower)
    os.close(follower)
    seen = ""
    while "20000 records produced" not in seen:
        assert select.select([leader], [], [], 120)[0], seen
        seen += os.read(leader, 4096).decode()
    assert done.wait(60) == 0
    os.close(leader)
    # What is done of what there is, the rate, and the time left.
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    assert re.search(r"produced \S+ +1\.9/1\.9 MiB +\d:\d\d:\d\d +[0-9.]+ \w+/s", plain), plain


@pytest.mark.parametrize(
    ("words", "told", "typed", "status"),
    [
        (("produce", "waiting"), "type a record a line; Ctrl-D ends", b"one\n\x04", 0),
        (("tail", "waiting"), "waiting for new records", b"", 130),
    ],
    ids=["produce", "tail"],
)
def test_a_command_that_waits_says_so_on_a_terminal(
    kafka_ds: CommandLine, words: tuple[str, ...], told: str, typed: bytes, status: int
) -> None:
    kafka_ds.run("topic", "create", "waiting")  # once for both
    leader, follower = pty.openpty()
    with kafka_ds.popen(*words, stdin=follower, stderr=follower) as waiting:
        seen = ""
        while told not in seen:
            assert select.select([leader], [], [], 60)[0], seen
            seen += os.read(leader, 4096).decode()
        if typed:
            os.write(leader, typed)
        else:
            waiting.send_signal(signal.SIGINT)
    assert waiting.returncode == status
    os.close(leader)
    os.close(follower)


def test_each_position_is_found(kafka_ds: CommandLine) -> None:
    kafka_ds.ok("topic", "create", "places", "--partitions", "2")
    for partition in "01":
        kafka_ds.ok(
            "produce",
            "places",
            "--partition",
            partition,
            typed="".join(f"{n}\n" for n in range(10)),
        )

    def offsets(position: str) -> list[tuple[int, int]]:
        found = kafka_ds.records("tail", "places", "--from", position, "--no-follow")
        return sorted((each["partition"], each["offset"]) for each in found)

    whole = [(partition, offset) for partition in (0, 1) for offset in range(10)]
    assert offsets("beginning") == offsets("0") == offsets("-100") == whole
    assert offsets("-1h") == offsets("2026-01-01T00:00:00+00:00") == whole
    assert offsets("8") == offsets("-2") == [(0, 8), (0, 9), (1, 8), (1, 9)]
    assert offsets("end") == offsets("10") == offsets("2999-01-01") == []
    only = ("--partition", "1", "--no-follow", "--values")
    assert kafka_ds.ok("consume", "places", *only) == "".join(f"{n}\n" for n in range(10))


def test_a_tail_follows(kafka_ds: CommandLine) -> None:
    kafka_ds.ok("topic", "create", "news", "--partitions", "1")
    kafka_ds.ok("produce", "news", typed="old\n")
    with kafka_ds.popen("tail", "news", "--from", "-1", "--json") as tail:
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["value"] == "old"
        kafka_ds.ok("produce", "news", typed="new\n")
        assert json.loads(tail.stdout.readline())["value"] == "new"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == 130


def test_what_is_typed_is_written_at_once(kafka_ds: CommandLine) -> None:
    """A pipe that stays open: more lines than requests may be in flight, each there before the next one."""
    kafka_ds.ok("topic", "create", "typed", "--partitions", "1")
    with kafka_ds.popen("produce", "typed", stdin=subprocess.PIPE) as produce:
        assert produce.stdin is not None
        for number in range(8):
            produce.stdin.write(f"{number}\n")
            produce.stdin.flush()
            if number == 7:
                words = ("tail", "typed", "--from", "beginning", "--max-messages", "8")
                assert len(kafka_ds.records(*words)) == 8
        produce.stdin.close()
        assert produce.wait(30) == 0


def test_a_group_is_listed_described_reset_and_deleted(kafka_ds: CommandLine) -> None:
    kafka_ds.ok("topic", "create", "paid", "--partitions", "2")
    for partition in "01":
        kafka_ds.ok("produce", "paid", "--partition", partition, typed="a\nb\nc\n")
    shown = kafka_ds.records("consume", "paid", "--group", "billing", "--max-messages", "4")
    assert len(shown) == 4
    assert ("billing", "Empty") in [
        (g["group"], g["state"]) for g in kafka_ds.json("group", "list")
    ]
    assert kafka_ds.json("group", "describe", "billing")["lag"] == 2
    for word in ("describe", "delete"):
        told = kafka_ds.run("group", word, "biling").complaint
        assert told == "there is no group biling: did you mean billing?"
    assert "lag      2" in kafka_ds.ok("group", "describe", "billing")
    words = ("group", "reset", "billing", "--topic", "paid", "--to", "beginning")
    rows = kafka_ds.json(*words)
    assert [each["new_offset"] for each in rows] == [0, 0]
    assert kafka_ds.json("group", "describe", "billing")["lag"] == 2  # a dry run
    kafka_ds.ok(*words, "--execute")
    assert kafka_ds.json("group", "describe", "billing")["lag"] == 6
    rest = kafka_ds.records("consume", "paid", "--group", "billing", "--no-follow")
    assert len(rest) == 6
    kafka_ds.ok("group", "reset", "billing", "--to", "1", "--partition", "1", "--execute")
    found = kafka_ds.json("group", "describe", "billing")["partitions"]
    assert [(p["partition"], p["committed"], p["end"], p["lag"]) for p in found] == [
        (0, 3, 3, 0),
        (1, 1, 3, 2),
    ]
    kafka_ds.ok("group", "delete", "billing")
    assert "billing" not in [each["group"] for each in kafka_ds.json("group", "list")]


def test_a_share_group_is_listed_described_reset_and_deleted(
    broker: BrokerProcess, kafka_ds: CommandLine
) -> None:
    kafka_ds.ok("topic", "create", "shared", "--partitions", "2")
    kafka_ds.ok("produce", "shared", "--partition", "0", typed="a\nb\nc\n")
    starts = [{"partition_index": 0, "start_offset": 1}]
    request = build(
        AlterShareGroupOffsetsRequest,
        group_id="sharing",
        topics=[{"topic_name": "shared", "partitions": starts}],
    )
    with RawClient(broker.bootstrap) as client:
        find = FindCoordinatorRequest(key="sharing", key_type=0)
        wait_until("a coordinator", lambda: not client.ask(find, 2).error_code)
        wait_until("start offsets", lambda: not client.ask(request, 0).error_code)
    (listed,) = [g for g in kafka_ds.json("group", "list") if g["type"] == "share"]
    assert (listed["group"], listed["state"]) == ("sharing", "Empty")
    found = kafka_ds.json("group", "describe", "sharing")
    assert (found["type"], found["lag"], found["members"]) == ("share", 2, [])
    (row,) = found["partitions"]
    assert (row["topic"], row["partition"], row["start_offset"], row["lag"]) == ("shared", 0, 1, 2)
    assert "START OFFSET" in kafka_ds.ok("group", "describe", "sharing")
    words = ("group", "reset", "sharing", "--topic", "shared", "--to", "end")
    assert [(r["committed"], r["new_offset"]) for r in kafka_ds.json(*words)] == [(1, 3), (None, 0)]
    kafka_ds.ok(*words, "--execute")
    found = kafka_ds.json("group", "describe", "sharing")["partitions"]
    assert [(p["start_offset"], p["lag"]) for p in found] == [(3, 0), (0, 0)]
    kafka_ds.ok("group", "delete", "sharing")
    assert "sharing" not in [each["group"] for each in kafka_ds.json("group", "list")]


def test_a_streams_group_is_listed_described_and_deleted(
    broker: BrokerProcess, kafka_ds: CommandLine
) -> None:
    kafka_ds.ok("topic", "create", "lyrics", "--partitions", "2")
    kafka_ds.ok("topic", "create", "small", "--partitions", "1")
    epoch = 0

    def beat(member_epoch: int | None = None) -> bool:
        nonlocal epoch
        sent = epoch if member_epoch is None else member_epoch
        request = StreamsGroupHeartbeatRequest(
            group_id="counting",
            member_id="m",
            member_epoch=sent,
            endpoint_information_epoch=-1,
            rebalance_timeout_ms=60_000,
            topology=topology(subtopology("0", "lyrics", "small")) if sent == 0 else None,
            process_id="p",
            client_tags=[],
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )
        response = client.ask(request, 1)
        if not response.error_code:
            epoch = response.member_epoch
        return bool(response.active_tasks)

    with RawClient(broker.bootstrap) as client:
        find = FindCoordinatorRequest(key="counting", key_type=0)
        wait_until("a coordinator", lambda: not client.ask(find, 2).error_code)
        wait_until("tasks", beat)
        (listed,) = [g for g in kafka_ds.json("group", "list") if g["type"] == "streams"]
        assert (listed["group"], listed["state"]) == ("counting", "Stable")
        found = kafka_ds.json("group", "describe", "counting")
        assert (found["type"], len(found["members"])) == ("streams", 1)
        assert [(p["topic"], p["partition"]) for p in found["partitions"]] == [
            ("lyrics", 0),
            ("lyrics", 1),
            ("small", 0),
        ]
        assert "streams" in kafka_ds.ok("group", "describe", "counting")
        beat(-1)
    kafka_ds.ok("group", "delete", "counting")
    assert "counting" not in [each["group"] for each in kafka_ds.json("group", "list")]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_described_and_left_alone(
    broker: BrokerProcess, kafka_ds: CommandLine, protocol: str
) -> None:
    from confluent_kafka import Consumer

    topic = f"busy-{protocol}"
    kafka_ds.ok("topic", "create", topic, "--partitions", "2")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "client.id": "reader",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        wait_until("partitions", lambda: consumer.poll(0.2) or len(consumer.assignment()) == 2)
        found = kafka_ds.json("group", "describe", topic)
        assert (found["state"], found["type"], len(found["members"])) == ("Stable", protocol, 1)
        assert [(p["partition"], p["client_id"]) for p in found["partitions"]] == [
            (0, "reader"),
            (1, "reader"),
        ]
        words = ("group", "reset", topic, "--topic", topic, "--to", "end", "--execute")
        assert "stop them first" in kafka_ds.run(*words).complaint
        assert "has members" in kafka_ds.run("group", "delete", topic).complaint
        assert "has members" in kafka_ds.run("consume", topic, "--group", topic).complaint
    finally:
        consumer.close()


def test_aborted_and_open_transactions_are_left_out(
    broker: BrokerProcess, kafka_ds: CommandLine
) -> None:
    from confluent_kafka import Producer

    kafka_ds.ok("topic", "create", "decided", "--partitions", "1")
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "decides"}
    producer = Producer(settings)
    producer.init_transactions()
    for value, ends in (
        ("aborted", producer.abort_transaction),
        ("committed", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce("decided", value=value.encode())
        producer.flush()
        ends()
    words = ("tail", "decided", "--from", "beginning", "--no-follow")
    assert [each["value"] for each in kafka_ds.records(*words)] == ["committed"]
    every = kafka_ds.records(*words, "--isolation", "read_uncommitted")
    assert [each["value"] for each in every] == ["aborted", "committed"]


def test_the_state_of_a_cluster(tmp_path: Path) -> None:
    with cluster(tmp_path, 3, {"default.replication.factor": 3}) as brokers:
        kafka_ds = CommandLine(brokers.bootstrap, tmp_path)
        kafka_ds.ok("topic", "create", "orders", "--partitions", "3")
        found = kafka_ds.json("cluster", "status")
        assert (found["healthy"], found["partitions"], len(found["brokers"])) == (True, 3, 3)
        gone = next(each for each in (3, 2) if each != found["controller"])
        brokers[gone].kill()

        def is_seen() -> bool:
            seen = kafka_ds.json("cluster", "status")
            states = {each["id"]: each["state"] for each in seen["brokers"]}
            return seen["under_replicated"] == 3 and states[gone] == "fenced"

        wait_until("the broker to be missed", is_seen)
        found = kafka_ds.json("cluster", "status")
        assert not found["healthy"]
        assert all(gone not in each["isr"] for each in found["under_replicated_partitions"])
        assert "under-replicated partitions:" in kafka_ds.ok("cluster", "status")


def test_a_broker_that_will_not_come_back_is_unregistered(tmp_path: Path) -> None:
    with cluster(tmp_path, 2, {"default.replication.factor": 2}) as brokers:
        kafka_ds = CommandLine(brokers.bootstrap, tmp_path)
        kafka_ds.ok("topic", "create", "orders", "--partitions", "2")
        controller = kafka_ds.json("cluster", "status")["controller"]
        gone = 3 - controller
        words = ("cluster", "unregister", "--id", str(gone))
        told = kafka_ds.run(*words).complaint
        assert told == f"broker {gone} is alive and would register again: stop it first"
        brokers[gone].stop()
        wait_until("it to be fenced", lambda: kafka_ds.json("cluster", "status")["fenced"])
        assert kafka_ds.run(*words).complaint == (
            f"broker {gone} still has replicas of 2 partitions, the first is orders-0: reassign them first"
        )
        kafka_ds.ok("topic", "delete", "orders")
        seen = kafka_ds.json("cluster", "status")["topics"]
        told = {"id": gone, "unregistered": True, "topics_seen": seen}
        assert kafka_ds.json(*words) == told
        assert [each["id"] for each in kafka_ds.json("cluster", "status")["brokers"]] == [
            controller
        ]
        assert kafka_ds.run(*words).complaint == (
            f"BROKER_ID_NOT_REGISTERED: Broker ID {gone} is not currently registered."
        )


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_no_broker_is_told_in_time(tmp_path: Path, silent: bool) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if silent:
            held.listen()
        address = f"127.0.0.1:{held.getsockname()[1]}"
        done = CommandLine(address, tmp_path).run("topic", "list")
        assert done.complaint.startswith(f"connecting to {address} … no broker answers (")
        told = f"{'broker' if silent else 'no connection to broker'} {address}"
        assert f"--bootstrap-server): {told}" in done.complaint


@pytest.mark.parametrize("command", ["consume", "tail"])
def test_a_partition_without_a_leader_is_told(tmp_path: Path, command: str) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("default.api.timeout.ms=6000\n")
    with cluster(tmp_path, 2) as brokers:
        kafka_ds = CommandLine(brokers.bootstrap, tmp_path)
        kafka_ds.ok("topic", "create", "lone", "--partitions", "2", "--replication-factor", "1")
        gone = 3 - kafka_ds.json("cluster", "status")["controller"]
        brokers[gone].kill()
        wait_until("no leader", lambda: kafka_ds.json("cluster", "status")["offline"])
        (lost,) = kafka_ds.json("cluster", "status")["offline_partitions"]
        done = kafka_ds.run(command, "lone", "--command-config", str(properties))
        place = f"lone-{lost['partition']}"
        waiting, failed = done.errors.splitlines()
        assert re.fullmatch(rf"{place} has no leader; retrying for up to [1-4] s", waiting)
        assert failed == (
            "kafka-ds: ListOffsets: timed out after default.api.timeout.ms=6000; "
            f"last error: LEADER_NOT_AVAILABLE: {place}"
        )
        assert (done.status, done.output) == (1, "")


def test_what_pipelines_cannot_do_is_told_before_spark_starts(
    kafka_ds: CommandLine, tmp_path: Path
) -> None:
    kafka_ds.ok("topic", "create", "flights")
    empty = tmp_path / "lak"
    empty.mkdir()
    for words, told in (
        (("run", "--once", "--lake", str(empty)), f"{empty} contains no tables of a cluster"),
        (("replay", "flihgts"), "there is no topic flihgts: did you mean flights?"),
        (("replay", "flights"), "topic flights has no typed table: kafka-ds topic alter flights"),
    ):
        done = kafka_ds.run("pipelines", *words)
        assert told in done.complaint
        assert "starting Spark" not in done.errors


def test_an_unusable_java_is_told_before_spark_starts(kafka_ds: CommandLine) -> None:
    nowhere = {"JAVA_HOME": "/nonexistent"}
    told = kafka_ds.run("sql", "--spark", "SELECT 1", environment=nowhere).complaint
    assert told.startswith("JAVA_HOME=/nonexistent: /nonexistent/bin/java is missing")


def test_tls_and_sasl_by_a_properties_file(tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    secure = ("--command-config", str(properties))
    with SecuredBroker(tmp_path / "secured") as broker:
        lines = [
            "security.protocol=SASL_SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={broker.authority.file}",
            "sasl.mechanism=PLAIN",
            "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\",
            f"""  username="alice" password="{PASSWORD}";""",
        ]
        properties.write_text("\n".join(lines))
        kafka_ds = CommandLine(broker.bootstrap("SAFE_SASL"), tmp_path)
        kafka_ds.ok("topic", "create", "safe", "--partitions", "1", *secure)
        kafka_ds.ok("produce", "safe", *secure, typed="x\n")
        found = kafka_ds.records("tail", "safe", "--from", "0", "--max-messages", "1", *secure)
        assert found[0]["value"] == "x"
        properties.write_text("\n".join(lines).replace(PASSWORD, "wrong"))
        told = kafka_ds.run("topic", "list", *secure).complaint
        assert "authentication with sasl.jaas.config failed" in told
        assert "wrong" not in told
        properties.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n")
        told = kafka_ds.run("topic", "list", *secure).complaint
        assert told.startswith("sasl.jaas.config must be given")
        assert told.endswith(f"({properties})")


def test_a_profile_names_a_cluster(broker: BrokerProcess, tmp_path: Path) -> None:
    kafka_ds = CommandLine(None, tmp_path)
    profiles = tmp_path / "config" / "kafka-ds" / "profiles.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text(f'[here]\nbootstrap-server = "{broker.bootstrap}"\n')
    assert isinstance(kafka_ds.json("topic", "list", "--profile", "here"), list)
    assert isinstance(kafka_ds.json("--profile", "here", "topic", "list"), list)
    assert "has no profile there; it has here" in (
        kafka_ds.run("topic", "list", "--profile", "there").complaint
    )
