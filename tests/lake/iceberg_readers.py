"""An Iceberg table's rows, as its readers give them."""

from __future__ import annotations

import os
from typing import Any

from pyiceberg.table import StaticTable

from kafka_ds.topic.names import ICEBERG
from tests.duck import connect
from tests.lake.odd_rows import comparable

Rows = list[dict[str, Any]]


def opened(table_uri: str) -> StaticTable:
    """The table beside a Delta table, by PyIceberg, without a catalog."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    options = {"s3.endpoint": endpoint} if endpoint else {}
    return StaticTable.from_metadata(f"{table_uri}/{ICEBERG}", options)


def by_pyiceberg(table_uri: str, **scan: Any) -> Rows:
    # Not by `to_arrow()`: of files whose texts are of different types of Arrow's it makes no table.
    found: Rows = opened(table_uri).scan(**scan).to_arrow_batch_reader().read_all().to_pylist()
    return found


def by_duckdb(table_uri: str, where: str = "true") -> Rows:
    with connect("avro", "iceberg") as duck:
        query = f"FROM iceberg_scan('{table_uri}/{ICEBERG}') WHERE {where}"
        found: Rows = duck.sql(query).to_arrow_table().to_pylist()
        return found


def without_null_lists(rows: Rows) -> Rows:
    """As PyIceberg has them: a list of structs that is null it reads as an empty one."""
    return comparable([{**row, "headers": row["headers"] or []} for row in rows])
