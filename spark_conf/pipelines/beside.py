"""Shell: what one application keeps beside the typed tables: Iceberg tables of the lake, and a catalog of it.

They need no Spark. While pipelines go on they are kept by a thread of their own, so that no table waits for them.
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
# A table that is being read when the application ends need not be finished: the next one does it.
STOP_S: Final = 10.0
Sync = Callable[[Callable[[], bool]], tuple[Mapping[str, object], Mapping[str, str]]]


class Beside:
    """All that was asked for; each asks whether it should end, and gives what it did, and by name why it did not."""

    def __init__(self, syncs: Mapping[str, Sync]) -> None:
        self._syncs = syncs

    def run_once(self, is_ended: Callable[[], bool] = lambda: False) -> list[str]:
        """Bring all in step; the names of what failed."""
        failed: list[str] = []
        for name, sync in self._syncs.items():
            if is_ended():
                break
            try:
                failed += sync(is_ended)[1]
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as problem:
                # Whatever it is, the thread goes on: a panic of deltalake is no Exception.
                failed.append(name)
                LOGGER.error("%s: %s", name, problem)
                LOGGER.debug("%s", name, exc_info=problem)
        return failed

    @contextmanager
    def running(self, interval_s: float = INTERVAL_S, stop_s: float = STOP_S) -> Iterator[None]:
        """Once an interval, until the context ends; then `stop_s` at most for the table that it is at."""
        ended = threading.Event()

        def go_on() -> None:
            while not ended.is_set():
                self.run_once(ended.is_set)
                ended.wait(interval_s)

        thread = threading.Thread(target=go_on, name="beside", daemon=True)
        if self._syncs:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if self._syncs:
                thread.join(stop_s)


def beside_at(lake: str, options: Mapping[str, str], *, iceberg: bool, catalog: str) -> Beside:
    """Iceberg tables, if asked for, and the catalog at an address, if there is one. Raises OptionError."""
    syncs: dict[str, Sync] = {}
    if iceberg:
        if find_spec("pyiceberg") is None:
            raise OptionError("Iceberg needs PyIceberg: install kafka-ds with its extra `iceberg`")
        from kafka_ds.delta.store.store import UnsupportedStore
        from kafka_ds.delta.store.uri import open_store
        from kafka_ds.iceberg.mirrors import Mirrors

        try:
            store = open_store(lake)
        except (UnsupportedStore, ValueError) as problem:
            raise OptionError(f"lake {lake}: {problem}") from None
        syncs["Iceberg"] = Mirrors(store).sync
    if catalog:
        from kafka_ds.catalogs.registrar import registrar_at

        syncs[f"catalog {catalog}"] = registrar_at(catalog, lake, options).sync
    return Beside(syncs)
