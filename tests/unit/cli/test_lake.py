"""SQL over a lake: what is a person's surprise otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from broker.cli.lake import Lake, LakeQueries
from broker.cli.options import ClusterTarget, CommandError
from kafka_ds.client.admin import BrokerDescription, ClusterDescription
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.topic.schemas import TOPIC_SCHEMA

VALUES = [b'{"total": 12.5, "of": [1, {"a": 2}]}', None, b'{"total": 3}']


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[LakeQueries]:
    write_deltalake(tmp_path / "topics" / "orders", pa.table({"key": [b"1"] * 3, "value": VALUES}))
    write_deltalake(tmp_path / "tables" / "orders", pa.table({"value": ["text"]}))
    made = LakeQueries(Lake(str(tmp_path)))
    yield made
    made.close()


@pytest.mark.parametrize(
    "asked",
    [
        "value->>'$.total'",
        "value->>'total'",
        "decode(value)->>'total'",
        "json_extract_string(value, '$.total')",
        "json_value(value, '$.total')",
        "decode(value)->'total'",
        "decode(value)->>'$.total'",
        "get_json_object(value, '$.total')",
    ],
)
def test_json_is_read_out_of_bytes(queries: LakeQueries, asked: str) -> None:
    found = queries.rows(f"SELECT ({asked})::VARCHAR AS total FROM orders")
    assert [row["total"] for row in found] == ["12.5", None, "3"]
    assert queries.notes == []


def test_json_of_texts_is_read_as_before(queries: LakeQueries) -> None:
    asked = "SELECT '{\"a\": [5]}'->'a'->>0 AS x, list_transform([1], lambda n: n + 1) AS y, NULL->>'a' AS z"
    assert queries.rows(asked) == [{"x": "5", "y": [2], "z": None}]
    assert queries.rows("SELECT '{\"a\": 1}'::JSON->>'a' AS x") == [{"x": "1"}]


@pytest.mark.parametrize(
    "asked",
    [
        "value->'total'",
        "json_extract(orders.value, '$.total')",
        "orders.value::JSON",
        "CAST(value AS VARCHAR)",
        'cast(o."key" as TEXT)',
    ],
)
def test_bytes_that_duckdb_escapes_are_told(queries: LakeQueries, asked: str) -> None:
    queries.rows(f"SELECT {asked} FROM orders AS {'o' if 'o.' in asked else 'orders'}")
    (note,) = queries.notes
    assert "decode(value) is the text" in note
    queries.rows("SELECT value::JSON FROM typed.orders WHERE false")
    assert queries.notes == []


def test_a_function_that_takes_no_bytes_is_told(queries: LakeQueries) -> None:
    with pytest.raises(CommandError, match=r"decode\(value\) is the text"):
        queries.rows("SELECT * FROM orders WHERE value LIKE '%3%'")


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (None, ": did you mean orders? (a new topic has a table once records are copied: see lake.max.lag.ms)"),
        (["order", "orders"], " (a new topic has a table once records are copied: see lake.max.lag.ms)"),
        (["orders"], ": did you mean orders?"),
    ],
)  # fmt: skip
def test_a_topic_without_a_table_is_new_or_mistyped(
    queries: LakeQueries, tmp_path: Path, known: list[str] | None, told: str
) -> None:
    lake = Lake(str(tmp_path), broker_topics=lambda: known)
    with pytest.raises(CommandError) as caught:
        lake.topic("order")
    assert str(caught.value).endswith(told)
    with closing(LakeQueries(lake)) as asking, pytest.raises(CommandError) as caught:
        asking.rows('SELECT * FROM "order"')
    assert str(caught.value).endswith(told)


@pytest.mark.parametrize(
    ("asked", "is_hinted"),
    [
        ("SELECT * FROM order", True),
        ("SELECT * FROM where offset > 3", False),
        ("SELECT * FROM where partition > 3", False),
    ],
)
def test_a_keyword_is_named_where_a_topic_may_be_meant(
    queries: LakeQueries, asked: str, is_hinted: bool
) -> None:
    with pytest.raises(CommandError) as caught:
        queries.rows(asked)
    word = asked.split()[3]
    assert (f"{word} is a keyword: write" in str(caught.value)) == is_hinted


def test_dead_letters_of_all_their_topics_are_one_view(tmp_path: Path) -> None:
    names = ("topic", "partition", "offset", "group", "delivery.count", "message")
    for number, topic in enumerate(("dlq.a", "dlq.b", "orders")):
        values = ("orders", "0", str(number), "g", "5", "why")
        headers = [
            {"key": f"__dlq.errors.{name}", "value": value.encode()}
            for name, value in zip(names, values, strict=True)
        ]
        row = {"partition": 0, "offset": 0, "value": b"text", "headers": headers}
        table = pa.Table.from_pylist([row], schema=TOPIC_SCHEMA)
        write_deltalake(tmp_path / "topics" / topic, table)
    queries = LakeQueries(Lake(str(tmp_path)))
    asked = (
        'SELECT dead_letter_topic, "offset", delivery_count, decode(value) AS value '
        "FROM dead_letters ORDER BY dead_letter_topic"
    )
    assert [tuple(row.values()) for row in queries.rows(asked)] == [
        ("dlq.a", 0, 5, "text"),
        ("dlq.b", 1, 5, "text"),
    ]
    queries.close()


def test_a_value_that_is_no_json_can_be_passed_over(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "topics" / "odd", pa.table({"value": [b"{}", b"no"]}))
    queries = LakeQueries(Lake(str(tmp_path)))
    with pytest.raises(CommandError, match=r"Malformed JSON .*\(try\(\.\.\.\)"):
        queries.rows("SELECT value->>'a' AS a FROM odd")
    assert queries.rows("SELECT try(value->>'a') AS a FROM odd") == [{"a": None}, {"a": None}]
    queries.close()


def test_tables_are_topics_and_typed_tables(queries: LakeQueries) -> None:
    for asked in ("SHOW TABLES", "show tables;"):
        assert [row["name"] for row in queries.rows(asked)] == ["orders", "typed.orders"]
        (note,) = queries.notes
        assert "20 system views" in note


def test_who_may_not_ask_for_the_lake_is_told_to_name_it() -> None:
    """DESCRIBE_CONFIGS on the cluster is an administrator's."""
    broker = BrokerDescription(node_id=1, host="there", port=9092, rack=None)
    cluster = ClusterDescription(cluster_id="c", controller_id=1, brokers=[broker])

    def refuses(_: int) -> None:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "1")

    admin: Any = SimpleNamespace(describe_cluster=lambda: cluster, describe_broker_configs=refuses)
    with pytest.raises(CommandError, match=r"\(CLUSTER_AUTHORIZATION_FAILED\): give --lake"):
        ClusterTarget().lake_of(admin)
