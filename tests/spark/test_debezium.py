"""docs/how-to/database-changes.md with a real PostgreSQL, Debezium and Kafka Connect: the table equals the database."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_conf.pipelines.pipelines import Pipelines
from spark_conf.pipelines.registry import SchemaRegistry
from tests.command_line import CommandLine
from tests.pages import own_blocks
from tests.processes import BrokerProcess, running_broker, wait_until
from tests.spark.change_stream import PAGE, Database, programs, running_connect, running_database
from tests.spark.topics import Topic
from tests.spark.typed_tables import errors_of, keep, state_of

BLOCKS = own_blocks(PAGE, __file__)
JSON = "org.apache.kafka.connect.json.JsonConverter"
MORE_TYPES = """
    CREATE TYPE state AS ENUM ('new', 'paid');
    ALTER TABLE orders ADD state state, ADD tags text[], ADD is_gift boolean, ADD weight double precision,
        ADD big bigint, ADD content jsonb, ADD mark uuid;
"""


@pytest.fixture
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with running_database(tmp_path_factory.mktemp("database")) as running:
        yield running


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that has no topic of a first try."""
    with running_broker(tmp_path / "data", {}) as running:
        yield running


def change(database: Database, random: Random, count: int, column: str = "") -> None:
    """Transactions that insert, update and delete rows at random."""
    for _ in range(count):
        n = random.randrange(20)
        total = f"{random.randrange(10**9)}.{random.randrange(100):02}"
        more = f", {column} = {n}" if column else ""
        content = json.dumps({"a": [n]})
        kinds = [
            f"DELETE FROM orders WHERE id = {n}",
            f"UPDATE orders SET total = {total}, customer = NULL{more} WHERE id <= {n}",
            f"UPDATE orders SET id = id + 100 WHERE id = {n}"
            f" AND NOT EXISTS (SELECT 1 FROM orders WHERE id = {n + 100})",
            f"INSERT INTO orders VALUES ({n}, E'ä\\n\"{n}', {total}, '2026-11-{n + 1}', '2026-11-24 09:30:00.125+01',"
            f" 'paid', '{{a,b}}', {n % 2 == 0}, {n / 7}, {2**53 + n}, '{content}', gen_random_uuid())"
            f" ON CONFLICT (id) DO UPDATE SET customer = 'again', big = -{n}",
        ]
        database.run(random.choice(kinds))


def rows_of(database: Database) -> list[dict[str, Any]]:
    """The database's rows, spelled as Debezium does."""
    statement = """
        SELECT json_agg(to_jsonb(t) || jsonb_build_object(
            'total', total::text,
            'content', to_jsonb(t)->>'content',
            'due', due || 'Z',
            'made', to_char(made AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
        ) ORDER BY id) FROM orders t
    """
    ((text,),) = database.run(statement)
    rows = ({n: v for n, v in row.items() if v is not None} for row in json.loads(text))
    return [{**row, "made": utc(row["made"])} for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_table_of_current_state_equals_the_database(
    spark: SparkSession,
    pipelines: Pipelines,
    broker: BrokerProcess,
    database: Database,
    tmp_path: Path,
) -> None:
    random = Random(7)
    topic = Topic(broker, "shop.public.orders")
    (created,) = (block.code for block in BLOCKS if "topic create" in block.code)
    words = shlex.split(created.replace("\\\n", " "))
    CommandLine(broker.bootstrap, tmp_path).ok(*words[1:])
    (made,) = (block.code for block in BLOCKS if "CREATE TABLE" in block.code)
    database.run(made)

    def is_equal() -> bool:
        keep(pipelines, topic)
        if not (broker.lake / "tables" / topic.name).exists():
            return False
        found = sorted(state_of(spark, topic).values(), key=lambda row: row["id"])
        return [{**row, "made": utc(row["made"])} for row in found] == rows_of(database)

    with running_connect(tmp_path, broker.bootstrap, database, {}):
        wait_until("the snapshot", is_equal, timeout_s=90, every_s=1)
        (query,) = (block.code for block in BLOCKS if block.language == "sql")
        found = spark.sql(query.replace("/path/to/data/lake", str(broker.lake))).collect()
        assert [(row.customer, str(row.total)) for row in found] == [
            ("ada", "12.50"),
            ("ben", "7.25"),
        ]
        database.run(MORE_TYPES)
        change(database, random, 30)
        wait_until("changes", is_equal, timeout_s=60, every_s=1)
        change(database, random, 10)
    # The connector was killed; it sends some changes once more.
    database.run("ALTER TABLE orders ADD COLUMN points int")
    change(database, random, 20, "points")
    with running_connect(tmp_path, broker.bootstrap, database, {}):
        wait_until("changes of another schema", is_equal, timeout_s=90, every_s=1)
    assert errors_of(topic) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_table_of_current_state_equals_the_database_by_avro(
    spark: SparkSession,
    broker: BrokerProcess,
    database: Database,
    registry: str,
    tmp_path: Path,
) -> None:
    """By Apicurio's converter, which frames as Confluent's."""
    topic = Topic(broker, "shop.public.orders").create(
        partitions=3,
        **{
            "lake.table.mode": "current",
            "lake.table.envelope": "debezium",
            "lake.table.value.format": "avro",
            "lake.table.key.format": "avro",
        },
    )
    database.run(
        "CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(12,2), due date)"
    )
    database.run(
        "INSERT INTO orders VALUES (1, 'ada', 12.50, '2026-12-01'), (2, 'ben', 7.25, NULL)"
    )
    of_converter = {
        "url": registry.replace("/ccompat/v7", "/registry/v2"),
        "auto-register": "true",
        "id-handler": "io.apicurio.registry.serde.Legacy4ByteIdHandler",
        "headers.enabled": "false",
        "use-id": "contentId",
    }
    lines = {
        f"{side}.converter={JSON}": "\n".join(
            [
                f"{side}.converter=io.apicurio.registry.utils.converter.AvroConverter",
                *(f"{side}.converter.apicurio.registry.{n}={v}" for n, v in of_converter.items()),
            ]
        )
        for side in ("key", "value")
    }
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    pipelines = Pipelines(spark, options, str(broker.lake), SchemaRegistry(registry))

    def is_equal() -> bool:
        keep(pipelines, topic)
        if not (broker.lake / "tables" / topic.name).exists():
            return False
        found = {
            key: (row["customer"], row["total"]) for key, row in state_of(spark, topic).items()
        }
        rows = database.run("SELECT id, customer, total FROM orders")
        return found == {f'{{"id":{n}}}': (customer, total) for n, customer, total in rows}

    with running_connect(tmp_path, broker.bootstrap, database, lines):
        wait_until("the snapshot", is_equal, timeout_s=90, every_s=1)
        database.run("UPDATE orders SET total = 1 WHERE id = 1; DELETE FROM orders WHERE id = 2")
        database.run(
            "ALTER TABLE orders ADD note text; INSERT INTO orders VALUES (3, 'cho', 2, NULL, 'n')"
        )
        wait_until("changes", is_equal, timeout_s=60, every_s=1)
    pipelines.close()
    assert state_of(spark, topic)['{"id":3}']["note"] == "n"
    assert errors_of(topic) == []


def utc(text: str) -> str:
    """A time without zeros behind its fraction."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return f"{whole}.{fraction}".rstrip("0").rstrip(".") + "Z"
