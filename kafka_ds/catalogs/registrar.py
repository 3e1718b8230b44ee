"""Shell: keeps the tables of a lake's topics registered in a catalog.

A topic's tables are dropped if the brokers do not list the topic and its Delta table is missing or marked as deleted.
So a client without the right to see a topic, or without access to the lake, drops nothing. A typed table is also
dropped if its folder is missing. An error with one table does not stop the others.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kafka_ds.catalogs.tables import (
    Catalog,
    CatalogColumn,
    CatalogError,
    CatalogStep,
    LakeTable,
    catalog_name,
    steps,
)
from kafka_ds.client.admin import Admin
from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import AZURE_SCHEMES, Store, UnsupportedStore
from kafka_ds.delta.store.uri import check_there, open_store
from kafka_ds.errors import OptionError
from kafka_ds.topic.names import ERRORS, TOPICS, TYPED_TABLES, topic_id_of

log = logging.getLogger("kafka_ds.catalogs")

PREFIX: Final = "kafka"
_COMMENTS: Final = {
    TOPICS: "Topic {}: its records, keys and values as bytes",
    TYPED_TABLES: "Topic {}: a column for each field",
    ERRORS: "Topic {}: what did not fit its typed table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableState:
    """A table of the lake at a version."""

    version: int
    columns: tuple[CatalogColumn, ...]
    is_deleted: bool


class Registrar:
    """All tables of a lake in one catalog: schemas `<prefix>_topics` and `<prefix>_tables`."""

    def __init__(
        self,
        store: Store,
        lake: str,
        catalog: Catalog,
        topics: Callable[[], Collection[str]],
        *,
        prefix: str = PREFIX,
    ) -> None:
        """`lake`: its address for readers of the catalog; `topics` lists the topics that the brokers have."""
        self._store = store
        self._lake = address_for_readers(store, lake)
        self._catalog = catalog
        self._topics = topics
        self._prefix = prefix
        self._states: dict[str, _TableState] = {}

    def sync(
        self, is_ended: Callable[[], bool] = lambda: False
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Bring the catalog up to date: what was done by table, and the errors of other tables.

        `is_ended` is called between tables. Raises CatalogError if the catalog does not answer, KafkaDsError if no
        broker does, and OSError if the lake does not or does not exist.
        """
        check_there(self._store)
        done: dict[str, str] = {}
        failed: dict[str, str] = {}
        topics = set(self._topics())
        for kind in (TOPICS, TYPED_TABLES):
            schema = f"{self._prefix}_{kind}"
            wanted = self._wanted(kind, topics, failed, is_ended)
            for step in steps(wanted, self._catalog.tables(schema), self._lake):
                if is_ended():
                    break
                name = f"{schema}.{step.name}"
                try:
                    if step.act == "drop" and not self._is_dropped(kind, step, topics):
                        continue
                    self._apply(schema, step)
                    done[name] = step.act
                    log.info("%s in the catalog: %s", name, step.act)
                except (CatalogError, DeltaError, OSError) as problem:
                    failed[name] = " ".join(str(problem).split())
        for name, why in failed.items():
            log.error("%s cannot be registered in the catalog: %s", name, why)
        return done, failed

    def close(self) -> None:
        """Close the connection to the catalog."""
        self._catalog.close()

    def _apply(self, schema: str, step: CatalogStep) -> None:
        if step.table is None:
            self._catalog.drop(schema, step.name)
        elif step.act == "create":
            self._catalog.create(schema, step.table)
        elif step.act == "replace":
            self._catalog.replace(schema, step.table)
        else:
            raise CatalogError("another table has this name; it is left as it is")

    def _wanted(
        self,
        kind: str,
        topics: Collection[str],
        failed: dict[str, str],
        is_ended: Callable[[], bool],
    ) -> list[LakeTable]:
        found: dict[str, LakeTable] = {}
        for folder in sorted(self._store.folders(kind)):
            if is_ended():
                break
            is_errors = kind == TYPED_TABLES and folder.endswith(ERRORS)
            topic = folder.removesuffix(ERRORS) if is_errors else folder
            try:
                table = self._table(f"{kind}/{folder}")
                is_gone = self._is_gone(topic, topics)
            except (DeltaError, OSError) as problem:
                failed[f"{kind}/{folder}"] = " ".join(str(problem).split())
                continue
            if table is None or is_gone or (kind == TOPICS and table.is_deleted):
                continue
            name = catalog_name(folder)
            if name in found:
                failed[f"{kind}/{folder}"] = f"the name {name} is taken by {found[name].location}"
                continue
            found[name] = LakeTable(
                name=name,
                topic=topic,
                lake=self._lake,
                location=f"{self._lake}/{kind}/{folder}",
                comment=_COMMENTS[ERRORS if is_errors else kind].format(topic),
                columns=table.columns,
            )
        return list(found.values())

    def _is_dropped(self, kind: str, step: CatalogStep, topics: Collection[str]) -> bool:
        """Whether the topic or the typed table of a registration no longer exists."""
        if self._is_gone(step.topic, topics):
            return True
        folders = [
            each for each in (step.topic, step.topic + ERRORS) if catalog_name(each) == step.name
        ]
        return (
            kind == TYPED_TABLES
            and self._is_lake_there()
            and not any(self._table(f"{kind}/{each}") for each in folders)
        )

    def _is_lake_there(self) -> bool:
        return any(self._store.folders(kind) for kind in (TOPICS, TYPED_TABLES))

    def _is_gone(self, topic: str, topics: Collection[str]) -> bool:
        if topic in topics:
            return False
        if not self._is_lake_there():
            return False
        table = self._table(f"{TOPICS}/{topic}")
        return table is None or table.is_deleted

    def _table(self, folder: str) -> _TableState | None:
        """The table in a folder, read again if it has a new version; None if there is none."""
        # A new DeltaLog: one that has read a version does not notice that the table was deleted or recreated.
        version = DeltaLog(self._store, folder).latest_version()
        if version < 0:
            return None
        state = self._states.get(folder)
        if state is None or state.version != version:
            uri = self._store.uri(folder)
            state = _read(DeltaTable(uri, storage_options=self._store.delta_options))
            self._states[folder] = state
        return state


def _read(delta: DeltaTable) -> _TableState:
    metadata = delta.metadata()
    by = {name: at for at, name in enumerate(metadata.partition_columns)}
    fields: list[dict[str, Any]] = json.loads(delta.schema().to_json())["fields"]
    columns = tuple(
        CatalogColumn(name=each["name"], field=each, partition_index=by.get(each["name"]))
        for each in fields
    )
    is_deleted = topic_id_of(metadata.configuration) is None
    return _TableState(version=delta.version(), columns=columns, is_deleted=is_deleted)


def address_for_readers(store: Store, lake: str) -> str:
    """The lake's address as it was given, but of Azure's the one that Hadoop knows."""
    if "://" not in lake:
        return f"file://{os.path.abspath(lake)}"
    return store.uri("") if urlsplit(lake).scheme in AZURE_SCHEMES else lake.rstrip("/")


def registrar_at(
    address: str, lake: str, options: Mapping[str, str], *, prefix: str = PREFIX
) -> Registrar:
    """A registrar for the catalog at an address; `options` are a client's (`kafka.…`). Raises OptionError."""
    settings = parse_settings(options)

    def topics() -> Collection[str]:
        with Cluster(settings) as cluster:
            described = Admin(cluster).describe_topics()
        return {name for name, topic in described.items() if not topic.is_internal}

    try:
        store = open_store(lake)
    except (UnsupportedStore, ValueError) as problem:
        raise OptionError(f"lake {lake}: {problem}") from None
    return Registrar(store, lake, catalog_at(address), topics, prefix=prefix)


def catalog_at(address: str) -> Catalog:
    """The catalog at `thrift://host:port` or `unity+http://host:port/catalog`. Raises OptionError."""
    if "@" in address.partition("://")[2].partition("/")[0]:
        # Addresses are logged.
        raise OptionError("a catalog's address must not contain a user or password")
    try:
        scheme = urlsplit(address).scheme
        if scheme == "thrift":
            if find_spec("thrift") is None or find_spec("hive_metastore") is None:
                raise OptionError("a Hive metastore needs kafka-ds with its extra `hive`")
            from kafka_ds.catalogs.hive import HiveMetastore

            return HiveMetastore(address)
        if scheme in ("unity+http", "unity+https"):
            from kafka_ds.catalogs.unity import UnityCatalog

            return UnityCatalog(address)
    except (CatalogError, ValueError) as problem:
        raise OptionError(f"catalog {address}: {problem}") from None
    raise OptionError(
        f"catalog {address}: it must begin with thrift:// (Hive metastore), unity+http:// or unity+https://"
    )
