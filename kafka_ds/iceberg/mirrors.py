"""Shell: the Iceberg tables of a lake: of each topic's own table, its typed table and its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from pyiceberg.catalog import Catalog, load_catalog

from kafka_ds.delta.store.store import Store
from kafka_ds.delta.store.uri import check_there
from kafka_ds.errors import OptionError
from kafka_ds.iceberg.mirror import Mirror
from kafka_ds.topic.names import ERRORS, TOPICS, TYPED_TABLES

log = logging.getLogger("kafka_ds.iceberg")


class Mirrors:
    """All of them, or those of some topics."""

    def __init__(self, store: Store, topics: Collection[str] = (), catalog: str = "") -> None:
        """`catalog`: one of PyIceberg's configuration. Raises OptionError where it cannot be opened."""
        self._store = store
        self._topics = set(topics)
        self._catalog = _opened(catalog) if catalog else None
        self._mirrors: dict[str, Mirror] = {}

    def sync(
        self, is_ended: Callable[[], bool] = lambda: False
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Take each to the newest version of its Delta table; those that moved, and why others did not.

        `is_ended` is asked between tables. Raises OSError where the lake does not answer, or is not there.
        """
        check_there(self._store)
        moved: dict[str, str] = {}
        failed: dict[str, str] = {}
        folders = self._folders()
        for topic in self._topics - {self._topic_of(each) for each in folders}:
            failed[topic] = "it has no table"
            log.error("%s: it has no table", topic)
        for folder in folders:
            if is_ended():
                break
            try:
                version = self._mirror(folder).sync()
            except Exception as problem:
                # A catalog's and a store's, of any class: other tables go on.
                failed[folder] = " ".join(str(problem).split()) or repr(problem)
                log.error("%s: not synced to Iceberg: %s", folder, failed[folder])
                log.debug("%s", folder, exc_info=problem)
                continue
            if version is not None:
                moved[folder] = f"version {version}"
                log.info("%s: Iceberg has version %d", folder, version)
        return moved, failed

    def _mirror(self, folder: str) -> Mirror:
        if folder not in self._mirrors:
            self._mirrors[folder] = Mirror(self._store, folder, self._catalog)
        return self._mirrors[folder]

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
        # A catalog's, of any class: one that is away, or whose library is not there.
        text = " ".join(str(problem).split()) or repr(problem)
        raise OptionError(f"catalog {name}: {text}") from problem
