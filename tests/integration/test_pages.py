"""Pages are followed as they stand there: their commands print what they say, their scripts run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.command_line import CommandLine
from tests.pages import AVRO_ORDER, Block, PageReader, own_blocks
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.s3_server import S3Server

# What is waited for between steps: records in the table, disks without what is there.
QUICKLY = {
    "lake.max.lag.ms": 500,
    "lake.local.grace.ms": 0,
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 0,
}


def steps(page: str) -> list[Block]:
    """What is run here: setting up and starting are the test's own, Spark's are in tests/spark/test_pages.py."""
    return own_blocks(page, __file__)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    data = tmp_path / "data"
    running = BrokerProcess(
        tmp_path / "broker", {**QUICKLY, "log.dirs": data / "log", "lake.uri": data / "lake"}
    ).start()
    yield running
    running.stop()


def test_the_quick_start_does_what_it_says(broker: BrokerProcess, tmp_path: Path) -> None:
    reader = PageReader(tmp_path, {}, KAFKA_DS_BOOTSTRAP_SERVER=broker.bootstrap)
    (block,) = steps("README.md")
    assert len(block.commands) >= 5
    for command, output in block.commands:
        if " sql " in command:
            wait_for_rows(broker, tmp_path, 2)
        reader.type(command, output)


def test_the_tutorial_and_what_continues_it(broker: BrokerProcess, tmp_path: Path) -> None:
    instead = {"127.0.0.1:9092": broker.bootstrap}
    reader = PageReader(tmp_path, instead, KAFKA_DS_BOOTSTRAP_SERVER=broker.bootstrap)
    for block in steps("docs/get-started/tutorial.md"):
        if "table show" in block.code:
            wait_for_rows(broker, tmp_path, 1000)
        reader.follow(block)

    for block in steps("docs/how-to/decode.md"):
        if block.title != "avro_orders.py":
            reader.follow(block)

    for block in steps("docs/how-to/erase.md"):
        reader.follow(block)
    seen = reader.run("kafka-ds tail orders --from beginning --no-follow --values").stdout
    assert seen.count("\n") == 1000 - 254
    assert "ada" not in seen
    assert records_of(tmp_path, "key") == {b"ben", b"cho", b"dia"}


def test_avro_is_decoded(broker: BrokerProcess, tmp_path: Path) -> None:
    (script,) = [
        block for block in steps("docs/how-to/decode.md") if block.title == "avro_orders.py"
    ]
    reader = PageReader(tmp_path, {}, KAFKA_DS_BOOTSTRAP_SERVER=broker.bootstrap)
    CommandLine(broker.bootstrap, tmp_path).ok("produce", "avro-orders", typed=AVRO_ORDER + b"\n")
    wait_for_rows(broker, tmp_path, 1)
    reader.follow(script)
    reader.type("python -i avro_orders.py <<< 'print(orders.rows())' 2>&-", "[(21, 'ada')]\n")


def test_a_lake_on_s3(s3_server: S3Server, tmp_path: Path) -> None:
    """The broker of the page with the variables of the page, of which the values are this server's."""
    start, query = steps("docs/how-to/s3.md")
    exports, command = start.code.strip().rsplit("\n", 1)
    variables = {name: value for name, value in s3_server.environment.items() if name in exports}
    assert len(variables) == 4
    for name, value in variables.items():
        exports = re.sub(rf"{name}=\S+", f"{name}={value}", exports)
    printed = subprocess.run(
        ["bash", "-c", f"{exports}\nenv"], capture_output=True, text=True, check=True, env={}
    )
    lines = dict(line.partition("=")[::2] for line in printed.stdout.splitlines())
    given = {name: lines[name] for name in variables}
    assert given == variables
    program, broker_command, option, setting = shlex.split(command)
    assert (program, broker_command, option) == ("kafka-ds", "broker", "--override")
    overrides = {**QUICKLY, **dict([setting.split("=")])}
    with running_broker(tmp_path / "broker", overrides, given) as broker:
        CommandLine(broker.bootstrap, tmp_path).ok("produce", "orders", typed=b"a\nb\nc\n")
        wait_for_rows(broker, tmp_path, 3, **given)
        reader = PageReader(tmp_path, {}, KAFKA_DS_BOOTSTRAP_SERVER=broker.bootstrap, **given)
        (asked,) = query.code.splitlines()
        reader.type(asked, "count_star()\n           3\n")


def test_tls_scram_and_acls(tmp_path: Path) -> None:
    blocks = steps("docs/how-to/tls-and-scram.md")
    certificates = next(block for block in blocks if block.language == "sh")
    settings = next(block for block in blocks if block.title == "server.properties")
    PageReader(tmp_path, {}).follow(certificates)
    keys = {f"={name}.pem": f"={tmp_path / name}.pem" for name in ("broker", "authority")}
    PageReader(tmp_path, keys).follow(settings)
    broker = BrokerProcess(tmp_path / "one", {"listeners": "SASL_SSL://127.0.0.1:0"})
    broker.program = (*broker.program, str(tmp_path / settings.title))
    broker.start()
    try:
        reader = PageReader(tmp_path, {"localhost:9093": broker.bootstrap})
        for block in blocks:
            if block not in (certificates, settings):
                reader.follow(block)
    finally:
        broker.stop()


def test_several_brokers_are_one_cluster(tmp_path: Path) -> None:
    starts, asked = (block.code.splitlines() for block in steps("docs/how-to/several-brokers.md"))
    ports = {f"127.0.0.1:{port}": "127.0.0.1:0" for port in (9092, 9093, 9094)}
    with ExitStack() as running:
        bootstrap = [
            running.enter_context(PageReader(tmp_path, ports).broker(line)) for line in starts
        ]
        kafka_ds = CommandLine(bootstrap[0], tmp_path)
        wait_until("the brokers", lambda: kafka_ds.json("cluster", "status")["healthy"])
        reader = PageReader(tmp_path, {}, KAFKA_DS_BOOTSTRAP_SERVER=bootstrap[0])
        for line in asked:
            done = reader.run(line)
            assert done.returncode == 0, done.stderr
        found = kafka_ds.json("topic", "describe", "orders")
        assert [sorted(each["isr"]) for each in found["partitions"]] == [[1, 2, 3]] * 3


def test_three_brokers_of_one_file_are_a_cluster(tmp_path: Path) -> None:
    """On one machine: each has its own folder, and a folder is the lake."""
    settings, check, start, look = steps("docs/how-to/three-brokers.md")
    with ExitStack() as running:
        bootstrap = []
        for node_id in ("1", "2", "3"):
            here = {
                "node.id=1": f"node.id={node_id}",
                "broker-1:9092": "127.0.0.1:0",
                "/var/lib": str(tmp_path / node_id),
                "s3://lake": str(tmp_path),
                "metrics.port=9404\n": "",
            }
            reader = PageReader(tmp_path / node_id, here)
            reader.folder.mkdir()
            reader.follow(settings)
            reader.follow(check)
            bootstrap.append(running.enter_context(reader.broker(start.code)))
        kafka_ds = CommandLine(bootstrap[0], tmp_path)
        wait_until("the brokers", lambda: len(kafka_ds.json("cluster", "status")["brokers"]) == 3)
        wait_until("the brokers", lambda: kafka_ds.json("cluster", "status")["healthy"])
        PageReader(tmp_path, {"broker-1:9092": bootstrap[0]}).follow(look)
        found = kafka_ds.json("topic", "describe", "orders")
        assert [sorted(each["isr"]) for each in found["partitions"]] == [[1, 2, 3]] * 3


def test_a_cluster_is_restored(broker: BrokerProcess, tmp_path: Path) -> None:
    (block,) = steps("docs/how-to/restore.md")
    restore, start = block.code.splitlines()
    CommandLine(broker.bootstrap, tmp_path).ok("produce", "orders", typed="a\nb\nc\n")
    wait_for_rows(broker, tmp_path, 3)
    broker.stop()
    shutil.rmtree(tmp_path / "data" / "log")
    (tmp_path / "server.properties").write_text("node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\n")
    reader = PageReader(tmp_path, {"=/data/": f"={tmp_path}/data/"})
    assert "orders-0: offsets 0 to 2; nothing is known to be lost" in reader.run(restore).stdout
    with reader.broker(start) as address:
        again = CommandLine(address, tmp_path)
        words = ("tail", "orders", "--from", "beginning", "--no-follow", "--values")
        assert again.ok(*words) == "a\nb\nc\n"


def test_the_system_tables_are_asked(tmp_path: Path) -> None:
    """docs/reference/sql.md; its Python is in tests/spark/test_pages.py."""
    (asked,), printed = (block.code.splitlines() for block in steps("docs/reference/sql.md"))
    settings = {**QUICKLY, "lake.offsets.interval.ms": 300}
    with running_broker(tmp_path / "data", settings) as broker:
        kafka_ds = CommandLine(broker.bootstrap, tmp_path)
        kafka_ds.ok("produce", "orders", typed="a\nb\nc\n")
        kafka_ds.ok("consume", "orders", "--group", "billing", "--max-messages", "1")
        reader = PageReader(tmp_path, {})
        wait_until("the group", lambda: "billing" in reader.run(asked).stdout)
        for line in printed:
            assert reader.run(line).returncode == 0
            assert "group_lag" in (tmp_path / "views.sql").read_text()

        # docs/how-to/repair-the-lake.md, where nothing is missing.
        (repair,) = steps("docs/how-to/repair-the-lake.md")
        PageReader(tmp_path, {"s3://bucket/lake": "data/lake"}).follow(repair)


def wait_for_rows(broker: BrokerProcess, home: Path, count: int, **environment: str) -> None:
    kafka_ds = CommandLine(broker.bootstrap, home, **environment)
    wait_until("the lake", lambda: kafka_ds.json("tier", "status")[0]["lake_rows"] == count)


def records_of(folder: Path, column: str) -> set[bytes]:
    import polars

    table = polars.read_delta(str(folder / "data" / "lake" / "topics" / "orders"))
    return set(table[column])
