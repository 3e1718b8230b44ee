"""`kafka-ds` on a lake: SQL with and without a broker, the state of tiering, a topic's table, the prompt."""

import json
import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.cli.lake import Lake, LakeQueries
from tests.command_line import CommandLine, Done
from tests.processes import BrokerProcess, running_broker, wait_until

RECORDS = 1_000

# A file that is being written has another name until it is whole.
UNFINISHED = shutil.ignore_patterns("._*.tmp")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"lake.max.lag.ms": 500, "lake.offsets.interval.ms": 500}
    folder = tmp_path_factory.mktemp("cli-lake")
    with running_broker(folder, settings) as running:
        kafka_ds = CommandLine(running.bootstrap, folder)
        kafka_ds.ok("topic", "create", "pay-ments", "orders", "--partitions", "2")
        for partition in range(2):
            numbers = range(partition, 2 * RECORDS, 2)
            lines = "".join(f'{n}:{{"total": {n}}}\n' for n in numbers)
            words = ("--partition", str(partition), "--key-separator", ":")
            kafka_ds.ok("produce", "orders", *words, typed=lines)
        kafka_ds.ok("produce", "pay-ments", typed=b"\xff\n")
        kafka_ds.ok("consume", "orders", "--group", "billing", "--max-messages", "10")
        wait_until("the lake to have it all", lambda: is_tiered(kafka_ds))
        yield running


def is_tiered(kafka_ds: CommandLine) -> bool:
    found = {row["topic"]: row for row in kafka_ds.json("tier", "status")}
    whole = found["orders"]["lake_rows"] == 2 * RECORDS and found["pay-ments"]["lake_rows"] == 1
    return whole and all(row["lag"] == 0 for row in found.values())


@pytest.fixture
def kafka_ds(broker: BrokerProcess, tmp_path: Path) -> CommandLine:
    return CommandLine(broker.bootstrap, tmp_path)


@pytest.fixture
def alone(tmp_path: Path) -> CommandLine:
    """One that reaches no broker."""
    return CommandLine("127.0.0.1:1", tmp_path)


def test_topics_are_tables_and_no_broker_is_needed(
    broker: BrokerProcess, alone: CommandLine
) -> None:
    lake = ("--lake", str(broker.lake))
    table = alone.ok("sql", *lake, "SELECT count(*) AS n FROM orders")
    assert table.split() == ["n", str(2 * RECORDS)]
    query = """
        SELECT partition, sum(CAST(decode(value)->>'total' AS INT)) AS total, min("offset") AS first
        FROM orders WHERE partition = 1 GROUP BY partition
    """
    assert json.loads(alone.ok("sql", *lake, query, "--json")) == [
        {"partition": 1, "total": RECORDS**2, "first": 0}
    ]
    both = 'SELECT 1 AS one; SELECT value, timestamp IS NULL AS "no time" FROM "pay-ments"'
    assert alone.ok("sql", *lake, both, "--csv").split("\n")[1:] == [
        "1",
        "value,no time",
        "ff,False",
        "",
    ]
    typed = alone.ok("sql", *lake, typed="SELECT 'of standard input' AS x;\n")
    assert "of standard input" in typed
    names = [row["name"] for row in json.loads(alone.ok("sql", *lake, "SHOW TABLES", "--json"))]
    assert names == ["orders", "pay-ments"]


def test_the_cluster_says_where_its_lake_is(kafka_ds: CommandLine) -> None:
    query = "SELECT group_id, topic, sum(committed_offset) AS at FROM group_lag GROUP BY ALL"

    def is_noted() -> bool:
        return bool(json.loads(kafka_ds.ok("sql", query, "--json")))

    wait_until("the group's offsets in the lake", is_noted)
    assert json.loads(kafka_ds.ok("sql", query, "--json")) == [
        {"group_id": "billing", "topic": "orders", "at": 10}
    ]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (
            "SELECT * FROM typed.orders",
            "there is no table typed.orders: `kafka-ds pipelines run`",
        ),
        ("SELECT * FROM nowhere", "there is no topic or view nowhere: SHOW TABLES lists them"),
        ("SELECT * FROM ordres", "there is no topic or view ordres: did you mean orders?"),
        ("SELECT * FROM order", '(order is a keyword: write "order" in double quotes): did you'),
        ("SELEC 1", "syntax error"),
        ("SELECT offset FROM orders", 'write "offset" in double quotes'),
        ("SELECT nothing FROM orders", '"nothing" not found'),
    ],
)
def test_a_mistake_in_a_statement_is_one_line(
    broker: BrokerProcess, alone: CommandLine, statement: str, told: str
) -> None:
    assert told in alone.run("sql", "--lake", str(broker.lake), statement).complaint


def test_a_topic_whose_name_is_a_keyword_needs_quotes(
    broker: BrokerProcess, alone: CommandLine, tmp_path: Path
) -> None:
    lake = shutil.copytree(broker.lake, tmp_path / "lake", ignore=UNFINISHED)
    shutil.copytree(lake / "topics" / "orders", lake / "topics" / "order")
    told = alone.run("sql", "--lake", str(lake), "SELECT count(*) FROM order").complaint
    assert told.endswith(' (order is a keyword: write "order" in double quotes)')
    alone.ok("sql", "--lake", str(lake), 'SELECT count(*) FROM "order"')


def test_typed_tables_are_tables_too(
    broker: BrokerProcess, alone: CommandLine, tmp_path: Path
) -> None:
    lake = shutil.copytree(broker.lake, tmp_path / "lake", ignore=UNFINISHED)
    write_deltalake(lake / "tables" / "pay-ments", pa.table({"total": [2, 3]}))
    for written in (
        'SELECT sum(total) AS t FROM typed."pay-ments"',
        'SELECT sum(total)::INT - count(*) + 1 AS t FROM TYPED."PAY-MENTS", (FROM "pay-ments" LIMIT 1)',
    ):
        done = alone.ok("sql", "--lake", str(lake), "--json", written)
        assert json.loads(done) == [{"t": 5 if "count" not in written else 4}]
    tables = alone.ok("sql", "--lake", str(lake), "--csv", "show all tables;")
    assert "memory,typed,pay-ments\n" in tables


def test_a_query_of_a_table_without_rows_says_why(
    broker: BrokerProcess, alone: CommandLine, tmp_path: Path
) -> None:
    lake = shutil.copytree(broker.lake, tmp_path / "lake", ignore=UNFINISHED)
    DeltaTable(lake / "topics" / "orders").delete()
    for asked, told in (
        ("SELECT count(*) AS n FROM orders", "orders has no rows in the lake: "),
        ('SELECT count(*) AS n FROM "pay-ments"', ""),
    ):
        done = alone.run("sql", "--lake", str(lake), asked)
        assert done.status == 0
        assert done.errors.startswith(told) and bool(done.errors) == bool(told)
    shown = alone.run("table", "show", "orders", "--lake", str(lake), "--history", "0")
    assert shown.errors.startswith("orders has no rows in the lake: ")
    assert "PARTITION" not in shown.output and "VERSION" not in shown.output


def test_a_topic_that_has_no_table_is_told_apart_from_none(
    broker: BrokerProcess, alone: CommandLine, kafka_ds: CommandLine
) -> None:
    told = kafka_ds.run("table", "show", "order").complaint
    assert told == "there is no topic order: did you mean orders?"
    told = alone.run("table", "show", "order", "--lake", str(broker.lake)).complaint
    assert told.startswith(
        f"topic order has no table in {broker.lake}: did you mean orders? (a new"
    )
    told = alone.run("table", "show", "zebra", "--lake", str(broker.lake)).complaint
    assert told.endswith("a new topic has a table once records are copied: see lake.max.lag.ms)")
    kafka_ds.ok("topic", "create", "orders3")
    told = kafka_ds.run("table", "show", "orders3").complaint
    assert told.startswith(f"topic orders3 has no table in {broker.lake} (a new topic has")
    told = kafka_ds.run("sql", "SELECT * FROM orders3").complaint
    assert told.startswith("there is no table of topic orders3 (a new topic has")


def test_a_folder_without_a_cluster_is_told(alone: CommandLine, tmp_path: Path) -> None:
    told = alone.run("sql", "--lake", str(tmp_path), "SELECT 1").complaint
    assert told == f"{tmp_path} contains no tables of a cluster: is it the brokers' lake.uri?"
    assert "Install ossfs" in alone.run("sql", "--lake", "oss://x", "SELECT 1").complaint


def test_files_that_no_row_can_come_from_are_not_opened(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Neither those of another partition nor those of other offsets: what is damaged there does no harm."""
    copied = tmp_path / "lake"
    shutil.copytree(broker.lake, copied, ignore=UNFINISHED)
    for path in (copied / "topics" / "orders" / "partition=1").glob("*.parquet"):
        path.write_bytes(b"damaged")
    queries = LakeQueries(Lake(str(copied)))
    try:
        count = "SELECT count(decode(value)) AS n FROM orders WHERE"
        assert queries.rows(f"{count} partition = 0") == [{"n": RECORDS}]
        assert queries.rows(f'{count} "offset" >= {RECORDS}') == [{"n": 0}]
    finally:
        queries.close()


def test_the_state_of_tiering(broker: BrokerProcess, kafka_ds: CommandLine, tmp_path: Path) -> None:
    rows = {row["topic"]: row for row in kafka_ds.json("tier", "status")}
    orders = rows["orders"]
    assert (orders["tiered"], orders["lag"], orders["due"]) == (True, 0, 0)
    assert orders["ranges"] >= 2
    assert orders["lake_bytes"] > 0
    assert orders["local_bytes"] > 0
    done = kafka_ds.run("tier", "status", "--lake", str(tmp_path))
    assert (done.status, "cannot read the lake from this machine" in done.errors) == (0, True)
    assert "orders" in done.output


def test_the_state_of_tiering_before_groups_are_noted(tmp_path: Path) -> None:
    """In the first minute of a cluster not all system tables are there."""
    settings = {"lake.max.lag.ms": 300, "lake.offsets.interval.ms": -1}
    with running_broker(tmp_path, settings) as running:
        kafka_ds = CommandLine(running.bootstrap, tmp_path)
        kafka_ds.ok("produce", "orders", typed="a\nb\n")

        def row() -> dict[str, object]:
            done = kafka_ds.run("tier", "status", "--json")
            assert done.errors == ""
            return dict(json.loads(done.output)[0])

        wait_until("the lake to have it all", lambda: row()["lake_rows"] == 2)
        assert (row()["lag"], row()["due"]) == (0, 0)


def test_tables_are_optimized_and_expired_on_demand(tmp_path: Path) -> None:
    """Nothing of it happens by itself within the test."""
    settings = {
        "lake.max.lag.ms": 300,
        "lake.maintenance.interval.ms": 3_600_000,
        "remote.log.manager.task.interval.ms": 3_600_000,
    }
    with running_broker(tmp_path, settings) as running:
        kafka_ds = CommandLine(running.bootstrap, tmp_path)
        kafka_ds.ok("topic", "create", "orders", "--partitions", "2")
        kafka_ds.ok("topic", "create", "plain", "--config", "remote.storage.enable=false")
        for turn in range(1, 5):
            kafka_ds.ok("produce", "orders", "--partition", "0", typed="a\n" * 10)

            def rows() -> int:
                found = {row["topic"]: row for row in kafka_ds.json("tier", "status")}
                return int(found["orders"]["lake_rows"] or 0)

            wait_until(f"copy {turn}", lambda turn=turn: rows() == 10 * turn)
        before = kafka_ds.json("table", "show", "orders")
        assert before["files"] == 4
        first, second = kafka_ds.json("tier", "optimize")
        assert (first["partition"], first["files_before"], first["files_after"]) == (0, 4, 1)
        assert (first["rows"], second["files_before"]) == (40, 0)
        assert kafka_ds.json("table", "show", "orders")["files"] == 1
        (again, _) = kafka_ds.json("tier", "optimize", "--topic", "orders")
        assert again["files_before"] == 0

        (nothing, _) = kafka_ds.json("tier", "expire")
        assert (nothing["log_start_offset"], nothing["segments"]) == (0, 0)
        kafka_ds.ok("topic", "alter", "orders", "--config", "retention.ms=1")
        gone, _ = kafka_ds.json("tier", "expire", "--topic", "orders")
        assert (gone["log_start_offset"], gone["files"]) == (40, 1)
        assert gone["segments"] >= 1
        assert kafka_ds.json("table", "show", "orders")["files"] == 0

        # What is in the way of one table is a row of the result, and keeps no other from its upkeep.
        kafka_ds.ok("topic", "create", "blocked")
        kafka_ds.ok("produce", "blocked", typed="a\n" * 10)
        table = running.lake / "topics" / "blocked"
        wait_until("its table", lambda: DeltaTable.is_deltatable(str(table)))
        DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"})
        kafka_ds.ok("produce", "blocked", typed="a\n" * 10)
        for command in ("optimize", "expire"):

            def told(command: str = command) -> Done:
                return kafka_ds.run("tier", command, "--json")

            wait_until("the pause", lambda told=told: told().status == 1)
            done = told()
            assert done.errors == "kafka-ds: 1 of 3 partitions failed\n"
            blocked, *others = json.loads(done.output)
            assert "tiering of blocked-0 is paused: " in blocked["error"]
            assert (blocked["topic"], [each["error"] for each in others]) == ("blocked", [None] * 2)

        assert "is not tiered" in kafka_ds.run("tier", "expire", "--topic", "plain").complaint
        assert (
            "no topic nowhere" in kafka_ds.run("tier", "optimize", "--topic", "nowhere").complaint
        )


def test_a_topics_table(broker: BrokerProcess, kafka_ds: CommandLine, alone: CommandLine) -> None:
    found = kafka_ds.json("table", "show", "orders", "--files")
    assert found["rows"] == 2 * RECORDS == sum(each["rows"] for each in found["file_list"])
    assert {"column": "value", "type": "binary"} in found["schema"]
    assert [(p["partition"], p["first_offset"], p["last_offset"]) for p in found["partitions"]] == [
        (each, 0, RECORDS - 1) for each in range(2)
    ]
    assert (found["history"][-1]["version"], found["history"][-1]["operation"]) == (
        0,
        "CREATE TOPIC",
    )
    lake = ("--lake", str(broker.lake))
    shown = alone.ok("table", "show", "orders", *lake, "--history", "1")
    assert "headers         array<struct<key: string, value: binary>>" in shown
    assert alone.run("table", "show", "none", *lake).complaint == (
        f"topic none has no table in {broker.lake} (a new topic has a table once records are copied: "
        "see lake.max.lag.ms)"
    )


def test_the_prompt(broker: BrokerProcess, tmp_path: Path) -> None:
    """Several lines a statement, commands, a mistake that ends nothing, and a history."""
    leader, follower = pty.openpty()
    words = [sys.executable, "-m", "broker.cli", "sql", "--lake", str(broker.lake)]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    with subprocess.Popen(
        words, stdin=follower, stdout=follower, stderr=follower, env=environment
    ) as prompt:
        os.close(follower)
        seen = ""

        def until(text: str) -> str:
            nonlocal seen
            found = ""
            while text not in found:
                assert select.select([leader], [], [], 60)[0], (text, found)
                found += os.read(leader, 4096).decode()
            seen += found
            return found

        until("kafka-ds> ")
        os.write(leader, b"SELECT count(*) AS records\n")
        until("...> ")
        os.write(leader, b"FROM orders;\n")
        assert str(2 * RECORDS) in until("kafka-ds> ")
        os.write(leader, b"SELECT nonsense;\n")
        assert "Binder Error" in until("kafka-ds> ")
        os.write(leader, b".schema orders\n")
        assert "timestamp_type" in until("kafka-ds> ")
        os.write(leader, b".quit\n")
        assert prompt.wait(60) == 0, seen
    os.close(leader)
    assert "FROM orders;" in (tmp_path / "kafka-ds" / "sql_history").read_text()


def test_a_topic_that_was_deleted_is_said_to_be(
    broker: BrokerProcess, kafka_ds: CommandLine
) -> None:
    """Last, since the table without rows stays in the lake."""
    kafka_ds.ok("topic", "create", "gone")
    kafka_ds.ok("produce", "gone", typed="a\n")
    wait_until("its table", lambda: "gone" in Lake(str(broker.lake)).topics())
    kafka_ds.ok("topic", "delete", "gone")
    words = ("sql", "--lake", str(broker.lake), "SELECT count(*) FROM gone")
    wait_until("its end", lambda: kafka_ds.run(*words).errors == "topic gone was deleted\n")
    shown = kafka_ds.run("table", "show", "gone", "--history", "0")
    assert (shown.status, shown.errors) == (0, "topic gone was deleted\n")
