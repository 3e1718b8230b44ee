"""docs/reference/cli.md: each command of its examples is run as it stands there, and does well."""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from broker.cli import page
from tests.command_line import CommandLine
from tests.pages import PageReader, own_blocks
from tests.processes import BrokerProcess, running_broker, wait_until

QUICKLY = {"lake.max.lag.ms": 500, "lake.offsets.interval.ms": 500}
ANY_PORT = "listeners=PLAINTEXT://127.0.0.1:0"
PROPERTIES = f"node.id=1\n{ANY_PORT}\nlog.dirs=empty/log\nlake.uri=data/lake\n"
ORDERS = "".join(f'{{"total": {n}.5}}\n' for n in range(100))
# What needs Spark (tests/spark/test_typed_pages.py), the disks of an Apache Kafka (tests/peer/test_command_line.py),
# a catalog (tests/lake/test_catalogs.py), two lakes (tests/integration/test_promote.py), or a C compiler and minutes
# (`make test-compiled`).
ELSEWHERE = (
    *("kafka-ds pipelines", "--spark", "lake.table.value.format"),
    *("kafka-ds adopt", "kafka-ds catalog sync", "kafka-ds promote", "kafka-ds compile"),
)


def lines() -> Iterator[str]:
    for block in own_blocks("docs/reference/cli.md", __file__):
        yield from block.code.splitlines()


def test_each_command_has_an_example() -> None:
    named = {" ".join(("kafka-ds", *words)) for words, _ in page.commands(page.program)}
    shown = "\n".join(lines())
    assert {name for name in named if name not in shown} == set()


def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (tmp_path / "server.properties").write_text(PROPERTIES)
    (tmp_path / "orders.jsonl").write_text(ORDERS)
    settings = {**QUICKLY, "log.dirs": data / "log", "lake.uri": data / "lake"}
    with running_broker(tmp_path / "broker", settings) as broker:
        kafka_ds = CommandLine(broker.bootstrap, tmp_path)
        instead = {
            "broker:9092": broker.bootstrap,
            # By fsspec, too, and a package that is there.
            "gs://bucket/lake --fsspec token=anon": f"file://{data}/lake --fsspec auto_mkdir=",
            "s3://bucket/lake": "data/lake",
            "/mnt/lake": "data/lake",
        }
        reader = PageReader(tmp_path, instead, KAFKA_DS_BOOTSTRAP_SERVER=broker.bootstrap)
        for line in lines():
            if line == "kafka-ds demo" or any(each in line for each in ELSEWHERE):
                continue  # The demo: test_command_line_demo.py, with fewer records.
            prepare(line, broker, kafka_ds, data / "lake")
            if line.startswith("kafka-ds broker"):
                elsewhere = tmp_path / f"elsewhere-{len(line)}"
                elsewhere.mkdir()
                (elsewhere / "server.properties").write_text(PROPERTIES)
                with PageReader(elsewhere, {}).broker(line, "--override", ANY_PORT):
                    pass
            elif "--keep" in line:
                typed = f"{line} --records 2000"
                until_interrupted(kafka_ds, typed, tmp_path, lambda said: "until Ctrl-C" in said, 0)
            elif "# new records" in line:
                until_interrupted(
                    kafka_ds, line, tmp_path, lambda said: more(kafka_ds) in said, 130
                )
            else:
                done = reader.run(line)
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def prepare(line: str, broker: BrokerProcess, kafka_ds: CommandLine, lake: Path) -> None:
    """What a reader has done who types this."""
    if "topic create orders" in line and kafka_ds.json("topic", "list"):
        kafka_ds.ok("topic", "delete", "orders")
    elif "orders payments" in line:
        kafka_ds.ok("topic", "create", "payments")
    elif "cluster unregister --id 3" in line:
        with running_broker(lake.parent / "third", {"node.id": 3, "lake.uri": lake}):
            pass
        wait_until("it to be fenced", lambda: kafka_ds.json("cluster", "status")["fenced"] == [3])
    elif line == "kafka-ds group list":
        kafka_ds.ok("consume", "orders", "--group", "billing", "--no-follow")
    elif "typed.orders" in line:
        typed = pa.table({"customer": ["ada"], "total": [2]})
        write_deltalake(lake / "tables" / "orders", typed)
    elif "sql --lake data/lake" in line:
        wait_until("the lake", lambda: kafka_ds.json("tier", "status")[0]["lag"] == 0)
    elif "kafka-ds erase" in line:
        shutil.rmtree(lake / "tables", ignore_errors=True)  # No pipeline has made it.
    elif "kafka-ds restore" in line:
        broker.stop()


def more(kafka_ds: CommandLine) -> str:
    """A value that was produced right now."""
    kafka_ds.ok("produce", "orders", typed='{"total": 1}\n')
    return '{"total": 1}'


def until_interrupted(
    kafka_ds: CommandLine, line: str, folder: Path, is_told: Callable[[str], bool], status: int
) -> None:
    """Type a command, and Ctrl-C once it has told what is awaited."""
    output = folder / "printed"
    with (
        output.open("w") as file,
        kafka_ds.popen(
            *shlex.split(line, comments=True)[1:], cwd=folder, stdout=file, stderr=file
        ) as running,
    ):
        wait_until(line, lambda: is_told(output.read_text()))
        running.send_signal(signal.SIGINT)
    assert running.returncode == status, output.read_text()
