"""Shell: tables in a Hive metastore, by its Thrift protocol, registered as Spark registers Delta tables.

Engines take a table's columns from its Delta log. Those in the metastore are for people and tools that list tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import (
    AlreadyExistsException,
    Database,
    FieldSchema,
    NoSuchObjectException,
    SerDeInfo,
    StorageDescriptor,
    Table,
)
from thrift.protocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport import TSocket, TTransport

from kafka_ds.catalogs.tables import PROVIDER, CatalogError, LakeTable

# It logs a traceback for each error that it also raises.
logging.getLogger("thrift.transport").setLevel(logging.CRITICAL)

T = TypeVar("T")
TIMEOUT_MS: Final = 20_000
PORT: Final = 9083
# The metastore's limit.
TYPE_CHARACTERS_MAX: Final = 4_000
# Types that Hive has under other names, or lacks.
_HIVE_TYPES: Final = {"timestamp_ntz": "timestamp", "variant": "string", "void": "string"}


class HiveMetastore:
    """A metastore at `thrift://host:port`."""

    def __init__(self, address: str) -> None:
        self._address = address
        parts = urlsplit(address)
        socket = TSocket.TSocket(parts.hostname or "", parts.port or PORT)
        socket.setTimeout(TIMEOUT_MS)
        self._transport = TTransport.TBufferedTransport(socket)
        self._client = ThriftHiveMetastore.Client(TBinaryProtocol.TBinaryProtocol(self._transport))

    def tables(self, schema: str) -> dict[str, Mapping[str, str]]:
        """The tables of a database with their parameters; creates the database if it does not exist."""

        def request() -> dict[str, Mapping[str, str]]:
            try:
                self._client.get_database(schema)
            except NoSuchObjectException:
                self._create_database(schema)
            names = self._client.get_all_tables(schema)
            found = self._client.get_table_objects_by_name(schema, names) if names else []
            return {each.tableName: each.parameters or {} for each in found}

        return self._call(request)

    def create(self, schema: str, table: LakeTable) -> None:
        """Register an external table."""
        self._call(lambda: self._client.create_table(_hive_table(schema, table)))

    def replace(self, schema: str, table: LakeTable) -> None:
        """Alter a table; grants on it stay."""
        self._call(lambda: self._client.alter_table(schema, table.name, _hive_table(schema, table)))

    def drop(self, schema: str, name: str) -> None:
        """Drop a table; its files stay."""
        self._call(lambda: self._client.drop_table(schema, name, False))

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _create_database(self, name: str) -> None:
        with suppress(AlreadyExistsException):
            self._client.create_database(
                Database(name=name, description="Topics of kafka-ds", parameters={})
            )

    def _call(self, request: Callable[[], T]) -> T:
        try:
            if not self._transport.isOpen():
                self._transport.open()
            return request()
        except (TException, OSError) as problem:
            # A response may still be on its way: the connection cannot be used again.
            self.close()
            text = str(getattr(problem, "message", "") or problem)
            raise CatalogError(f"metastore {self._address}: {text}") from problem


def _hive_table(schema: str, table: LakeTable) -> Table:
    """The table as Spark's catalog writes it."""
    columns = [FieldSchema(each.name, _hive_type(each.type_text), None) for each in table.columns]
    stored = StorageDescriptor(
        cols=columns,
        location=table.location,
        inputFormat="org.apache.hadoop.mapred.SequenceFileInputFormat",
        outputFormat="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
        compressed=False,
        numBuckets=-1,
        serdeInfo=SerDeInfo(
            serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
            parameters={"serialization.format": "1", "path": table.location},
        ),
        bucketCols=[],
        sortCols=[],
        parameters={},
    )
    parameters: dict[str, Any] = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": PROVIDER}
    return Table(
        tableName=table.name,
        dbName=schema,
        owner="kafka-ds",
        createTime=0,
        lastAccessTime=0,
        retention=0,
        sd=stored,
        partitionKeys=[],
        parameters={**parameters, "comment": table.comment, **table.properties},
        tableType="EXTERNAL_TABLE",
    )


def _hive_type(text: str) -> str:
    text = _HIVE_TYPES.get(text, text)
    is_known = len(text) <= TYPE_CHARACTERS_MAX and not any(n in text for n in ("`", *_HIVE_TYPES))
    return text if is_known else "string"
