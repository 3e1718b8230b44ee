"""Shell: syncs the lake to Iceberg and to a catalog, in the application that maintains typed tables.

They need no Spark. A thread of their own runs them, so that no typed table waits for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from kafka_ds.errors import OptionError

LOGGER: Final = logging.getLogger("kafka_ds.pipelines")
INTERVAL_S: Final = 60.0
# A sync that is still running when the application ends may be cut short: the next one completes it.
STOP_S: Final = 10.0
Sync = Callable[[Callable[[], bool]], tuple[Mapping[str, object], Mapping[str, str]]]


class BackgroundSyncs:
    """Syncs by name; each is given a function that tells whether to end, and returns what it did and its errors."""

    def __init__(self, syncs: Mapping[str, Sync]) -> None:
        self._syncs = syncs

    def run_once(self, is_ended: Callable[[], bool] = lambda: False) -> list[str]:
        """Run each sync once; the names of what failed."""
        failed: list[str] = []
        for name, sync in self._syncs.items():
            if is_ended():
                break
            try:
                failed += sync(is_ended)[1]
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as problem:
                # The thread must survive: a panic in deltalake is a BaseException.
                failed.append(name)
                LOGGER.error("the sync to %s failed: %s", name, problem)
                LOGGER.debug("the sync to %s failed", name, exc_info=problem)
        return failed

    @contextmanager
    def running(self, interval_s: float = INTERVAL_S, stop_s: float = STOP_S) -> Iterator[None]:
        """Run the syncs once an interval until the context ends; then wait at most `stop_s` for the present table."""
        ended = threading.Event()

        def loop() -> None:
            while not ended.is_set():
                self.run_once(ended.is_set)
                ended.wait(interval_s)

        thread = threading.Thread(target=loop, name="background syncs", daemon=True)
        if self._syncs:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if self._syncs:
                thread.join(stop_s)


def background_syncs(
    lake: str, options: Mapping[str, str], *, iceberg: bool, catalog: str
) -> BackgroundSyncs:
    """The syncs to Iceberg tables (`iceberg`) and to the catalog at an address (`catalog`). Raises OptionError."""
    syncs: dict[str, Sync] = {}
    if iceberg:
        if find_spec("pyiceberg") is None:
            raise OptionError("Iceberg needs PyIceberg: install kafka-ds with its extra `iceberg`")
        from kafka_ds.delta.store.store import UnsupportedStore
        from kafka_ds.delta.store.uri import open_store
        from kafka_ds.iceberg.lake_sync import LakeSync

        try:
            store = open_store(lake)
        except (UnsupportedStore, ValueError) as problem:
            raise OptionError(f"lake {lake}: {problem}") from None
        syncs["Iceberg"] = LakeSync(store).sync
    if catalog:
        from kafka_ds.catalogs.registrar import registrar_at

        syncs[f"catalog {catalog}"] = registrar_at(catalog, lake, options).sync
    return BackgroundSyncs(syncs)
