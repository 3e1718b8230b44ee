"""Shell: decodes the records of a topic's steps, by the topic's settings and the columns that its table has.

A step expects the schemas of the last one, since looking for them reads its records once more. If it meets another
schema, it is decoded again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.storagelevel import StorageLevel

from kafka_ds.errors import OptionError
from kafka_ds.topic.typed_columns import OF_CURRENT, OWN, declared_columns
from spark_conf.pipelines import decoder, registry_decoder
from spark_conf.pipelines.avro import AvroReader
from spark_conf.pipelines.decoder import REASON, DecodedRows
from spark_conf.pipelines.kinds import ObjectOf, declared_kind
from spark_conf.pipelines.partitions import with_partitions
from spark_conf.pipelines.protobuf import ProtobufReader
from spark_conf.pipelines.registry import SchemaRegistry
from spark_conf.pipelines.schema_evolution import kind_at, with_declared
from spark_conf.pipelines.schema_names import UNEXPECTED, ExpectedNames, SchemaReader
from spark_conf.pipelines.table_settings import COLUMNS, KEY_FORMAT, NONE, TableSettings
from spark_conf.pipelines.typed_table import CURRENT, TypedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGGER = logging.getLogger("kafka_ds.pipelines")
BYTES: Final = t.BinaryType()


class StepDecoder:
    """Decodes the records of one topic."""

    def __init__(self, spark: SparkSession, registry: SchemaRegistry) -> None:
        self._spark = spark
        self._registry = registry
        # By topic id and the formats of keys and values.
        self._expected: dict[tuple[str, str, str], ExpectedNames] = {}
        # The partition columns that the table has; None before they were asked for.
        self._partition_columns: tuple[str, ...] | None = None
        # Paths whose declared column is not as declared.
        self._ignored: set[str] = set()

    @contextmanager
    def cached(
        self, settings: TableSettings, table: TypedTable, records: DataFrame
    ) -> Iterator[DecodedRows]:
        """The rows of records, cached: they are read once, and used for types, for errors and for the write."""
        all_cached: list[DataFrame] = []
        # It is read once or twice: to compress it takes more CPU time than that (2 s a million, 2026-11-29).
        self._spark.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")

        def cached(rows: DataFrame) -> DataFrame:
            all_cached.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
            return all_cached[-1]

        formats = (settings.topic_id, settings.key_format, settings.value_format)
        expected = self._expected.pop(formats, ExpectedNames())
        is_guess = bool(expected.of_column)
        try:
            decoded = self.decode(settings, table, records, expected, cached)
            if is_guess and (decoded.clashes or has_unexpected(decoded)):
                expected = ExpectedNames()
                decoded = self.decode(settings, table, records, expected, cached)
            yield decoded
            self._expected[formats] = expected
        finally:
            for each in all_cached:
                each.unpersist()

    def decode(
        self,
        settings: TableSettings,
        table: TypedTable,
        records: DataFrame,
        expected: ExpectedNames,
        cached: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    ) -> DecodedRows:
        """The rows of records. Raises OptionError if the table was created with another format of keys."""
        schema, has_bytes = table.schema(), settings.key_format == NONE
        if decoder.KEY in schema.names and has_bytes != (schema[decoder.KEY].dataType == BYTES):
            made = "text" if has_bytes else "bytes"
            raise created_otherwise(table, f"{KEY_FORMAT}={settings.key_format}", f"keys as {made}")
        reserved = OWN | (OF_CURRENT if settings.mode == CURRENT else frozenset())
        # Records are read twice if their schemas are looked for.
        read_twice = (lambda rows: rows) if expected.of_column else cached
        rows = decoder.with_metadata(records, settings.key_format)
        envelope = settings.envelope
        if envelope == decoder.DEBEZIUM and settings.key_format == "json":
            rows = decoder.without_schema(rows)
        if settings.key_format in decoder.REGISTERED:
            reader = self._reader(settings.key_format)
            rows = registry_decoder.with_keys(read_twice(rows), reader, expected)
        match settings.value_format:
            case "json":
                decoded = decoder.decode_json(
                    rows,
                    self._with_declared(settings, decoder.columns_of(schema)),
                    self._registry,
                    reserved=reserved,
                    envelope=envelope,
                    declared=expected.declared,
                    cached=cached,
                )
            case "avro" | "protobuf":
                reader = self._reader(settings.value_format)
                decoded = registry_decoder.decode_values(
                    read_twice(rows), schema, reader, expected, envelope, reserved
                )
                # Otherwise Spark decodes again for each condition on a decoded column.
                decoded = replace(decoded, rows=cached(decoded.rows))
            case _:
                decoded = decoder.decode_string(cached(rows), decoder.columns_of(schema))
        return with_partitions(decoded, self._partitioned_by(settings, table, schema), schema)

    def _partitioned_by(
        self, settings: TableSettings, table: TypedTable, schema: t.StructType
    ) -> tuple[str, ...]:
        """The partition columns that the table has, or is created with: it may have been removed meanwhile."""
        if not schema.names:
            self._partition_columns = None
            return settings.partition_columns
        if self._partition_columns is None:
            self._partition_columns = table.partition_columns()
        return self._partition_columns

    def _with_declared(self, settings: TableSettings, columns: ObjectOf) -> ObjectOf:
        """The table's columns and those that the topic declares; what cannot be as declared is logged once."""
        try:
            declared = {
                path: declared_kind(text)
                for path, text in declared_columns(settings.columns).items()
            }
        except ValueError as problem:
            raise OptionError(f"{COLUMNS}: {problem}") from None
        found = with_declared(columns, declared)
        for path, kind in declared.items():
            name = ".".join(path)
            if kind_at(found, path) != kind and name not in self._ignored:
                self._ignored.add(name)
                LOGGER.warning(
                    "%s: %s does not hold for %s: its column has another type",
                    settings.topic,
                    COLUMNS,
                    name,
                )
        return found

    def _reader(self, data_format: str) -> SchemaReader:
        if data_format == "avro":
            return AvroReader(self._registry)
        return ProtobufReader(self._registry)


def has_unexpected(decoded: DecodedRows) -> bool:
    """Whether a record has a schema whose name was not expected."""
    return decoded.rows.where(f.contains(REASON, f.lit(UNEXPECTED))).count() > 0


def created_otherwise(table: TypedTable, setting: str, created: str) -> OptionError:
    """The error of a table that has to be created again for this setting."""
    return OptionError(
        f"{setting}, but the table was created with {created}: set it back, or remove {table.path} and "
        f"{table.errors_path} to have it created again"
    )
