"""Shell: the Iceberg tables of a lake: one for each topic's table, typed table and errors table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from pyiceberg.catalog import Catalog, load_catalog

from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import check_there
from kafka_ds.errors import OptionError
from kafka_ds.iceberg.table_sync import TableSync
from kafka_ds.topic.names import ERRORS, TOPICS, TYPED_TABLES

log = logging.getLogger("kafka_ds.iceberg")


class LakeSync:
    """The Iceberg tables of all topics, or of some."""

    def __init__(self, store: Store, topics: Collection[str] = (), catalog: str = "") -> None:
        """`catalog`: its name in PyIceberg's configuration. Raises OptionError if it cannot be opened."""
        self._store = store
        self._topics = set(topics)
        self._catalog = _opened(catalog) if catalog else None
        self._tables: dict[str, TableSync] = {}

    def sync(
        self, is_ended: Callable[[], bool] = lambda: False
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Update each to the newest version of its Delta table; those that were updated, and the errors of others.

        `is_ended` is called between tables. Raises OSError if the lake does not answer or does not exist.
        """
        check_there(self._store)
        synced: dict[str, str] = {}
        failed: dict[str, str] = {}
        folders = self._folders()
        for topic in self._topics - {self._topic_of(each) for each in folders}:
            failed[topic] = "it has no table"
            log.error("Cannot sync topic %s to Iceberg: it has no table", topic)
        for folder in folders:
            if is_ended():
                break
            try:
                version = self._table(folder).sync()
            except Exception as problem:
                # Catalogs and stores raise errors of any class; the other tables are still synced.
                failed[folder] = " ".join(str(problem).split()) or repr(problem)
                log.error("Failed to sync %s to Iceberg: %s", folder, failed[folder])
                log.debug("Failed to sync %s to Iceberg", folder, exc_info=problem)
                continue
            if version is not None:
                synced[folder] = f"version {version}"
                log.info("Synced version %d of %s to Iceberg", version, folder)
        return synced, failed

    def _table(self, folder: str) -> TableSync:
        if folder not in self._tables:
            self._tables[folder] = TableSync(self._store, folder, self._catalog)
        return self._tables[folder]

    def _folders(self) -> list[str]:
        found = [
            f"{kind}/{name}"
            for kind in (TOPICS, TYPED_TABLES)
            for name in sorted(self._store.folders(kind))
        ]
        return [each for each in found if not self._topics or self._topic_of(each) in self._topics]

    def _topic_of(self, folder: str) -> str:
        kind, _, name = folder.partition("/")
        return name.removesuffix(ERRORS) if kind == TYPED_TABLES else name


def _opened(name: str) -> Catalog:
    try:
        return load_catalog(name)
    except Exception as problem:
        # Catalogs raise errors of any class if they do not answer, or if their library is missing.
        text = " ".join(str(problem).split()) or repr(problem)
        raise OptionError(f"catalog {name}: {text}") from problem
