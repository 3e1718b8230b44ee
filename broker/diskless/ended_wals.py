"""Shell: erases the objects of write-ahead logs whose brokers have ended, once no partition needs them.

The active controller's broker does it. Fences stay for good: without them a put of a broker that was only paused, and
does not know that it has ended, would count. So each ended log keeps an object of a hundred bytes a take-over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from broker.diskless.wal_object import (
    CorruptWalObject,
    checkpoint_number,
    place_of,
    wal_folder,
)
from broker.diskless.wal_reader import read_header, wals_in
from broker.metadata.events import WalId
from kafka_ds.delta.store.store import Store

if TYPE_CHECKING:
    from broker.metadata.image import MetadataImage

_T = TypeVar("_T")
_LOGGER = logging.getLogger(__name__)

INTERVAL_SECONDS = 300.0
# Every hour.
CLEAN_ROUNDS = 12
THREADS_MAX = 4


class EndedWals:
    """The write-ahead logs of a lake that nobody writes any more."""

    def __init__(
        self, store: Store, executor: Executor, image: MetadataImage, is_active: Callable[[], bool]
    ) -> None:
        """`is_active`: whether the controller is here."""
        self._store = store
        self._executor = executor
        self._image = image
        self._is_active = is_active
        # Those that were found to have only fences. A late put may still come, so they are looked at again some time.
        self._clean: set[WalId] = set()
        self._rounds = 0

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            if not self._is_active():
                continue
            try:
                await self.erase()
            except OSError as error:
                _LOGGER.warning("Unable to erase write-ahead logs of ended brokers: %s", error)
            except Exception:
                _LOGGER.exception("Unable to erase write-ahead logs of ended brokers")

    async def erase(self) -> int:
        """Erase what nobody needs; returns how many objects. Raises OSError."""
        self._rounds += 1
        if self._rounds % CLEAN_ROUNDS == 0:
            self._clean.clear()
        found = await self._in_thread(wals_in, self._store)
        erased = 0
        for wal in sorted(found):
            # Both of the same metadata: a log may be named until it ends, and never after that.
            if wal in self._clean or not self._has_ended(wal) or wal in self._named():
                continue
            try:
                count = await self._erase(wal)
            except (OSError, CorruptWalObject) as error:
                _LOGGER.warning("Unable to erase the write-ahead log of an ended broker: %s", error)
                continue
            erased += count
            if not count:
                self._clean.add(wal)
            else:
                _LOGGER.info(
                    "Erased %d objects of the write-ahead log of broker %d in its epoch %d",
                    count, wal.node_id, wal.broker_epoch,
                )  # fmt: skip
        return erased

    def _in_thread(self, work: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    def _named(self) -> Set[WalId]:
        """Those that may hold records of a partition that the table lacks."""
        topics = self._image.topics.values()
        return {wal for topic in topics for each in topic.partitions.values() for wal in each.wals}

    def _has_ended(self, wal: WalId) -> bool:
        """Whether the metadata here are later than the broker's incarnation: no partition will ever name it again."""
        if wal.broker_epoch > self._image.last_broker_epoch:
            return False
        broker = self._image.brokers.get(wal.node_id)
        return broker is None or broker.broker_epoch > wal.broker_epoch

    async def _erase(self, wal: WalId) -> int:
        """Erase a log's objects except fences."""
        listed = await self._in_thread(self._store.list, wal_folder(wal))
        paths = [each.path for each in listed if _is_of_wal(each.path)]
        shares = [paths[at::THREADS_MAX] for at in range(min(THREADS_MAX, len(paths)))]
        return sum(
            await asyncio.gather(*(self._in_thread(self._erase_some, share) for share in shares))
        )

    def _erase_some(self, paths: Sequence[str]) -> int:
        erased = 0
        for path in paths:
            if place_of(path) is None or any(
                not entry.is_fence for entry in read_header(self._store, path).entries
            ):
                self._store.delete(path)
                erased += 1
        return erased


def _is_of_wal(path: str) -> bool:
    return place_of(path) is not None or checkpoint_number(path) is not None
