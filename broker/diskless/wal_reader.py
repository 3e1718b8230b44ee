"""Shell: fences the write-ahead logs of a partition's earlier leaders, and reads what counts in them.

An object that a listing has shown and that is gone when it is read was erased, which says nothing about the places
behind it: the log is listed again. Damage is an error, which ends the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from broker.diskless.take_over import FoundEntry, FoundRecords, TakenPartition, WalTakeOver
from broker.diskless.wal_object import (
    FOLDER,
    HEADER_READ_BYTES,
    CorruptWalObject,
    WalHeader,
    checkpoint_number,
    checkpoint_path,
    decode_header,
    encode_fence,
    header_size,
    object_path,
    place_of,
    wal_folder,
)
from broker.metadata.events import WalId
from kafka_ds.delta.store.store import Store
from kafka_ds.protocol.topic_partition import PartitionId

_T = TypeVar("_T")

# Headers that are read one after the other in one thread.
HEADERS_A_THREAD = 16
# Objects are erased once a minute, so that the next listing is whole.
ATTEMPTS_MAX = 5


def read_header(store: Store, path: str) -> WalHeader:
    """An object's header. Raises OSError (FileNotFoundError: there is none), CorruptWalObject with the path."""
    try:
        data = store.read_range(path, 0, HEADER_READ_BYTES)
        size = header_size(data)
        if size > len(data):
            data += store.read_range(path, len(data), size - len(data))
        return decode_header(data)
    except CorruptWalObject as error:
        raise CorruptWalObject(f"{path}: {error}") from error


def wals_in(store: Store) -> list[WalId]:
    """The write-ahead logs that have objects. Raises OSError."""
    return [
        WalId(int(node), int(epoch))
        for node in store.folders(FOLDER)
        if node.isdecimal()
        for epoch in store.folders(f"{FOLDER}/{node}")
        if epoch.isdecimal()
    ]


def count_objects_of(store: Store, topic_id: bytes) -> int:
    """How many objects of write-ahead logs have records of this topic. Raises OSError, CorruptWalObject."""
    found = 0
    for wal in wals_in(store):
        for each in store.list(wal_folder(wal)):
            if place_of(each.path) is None:
                continue
            with contextlib.suppress(FileNotFoundError):  # Erased since.
                entries = read_header(store, each.path).entries
                found += any(e.topic_id == topic_id and not e.is_fence for e in entries)
    return found


class WalReader:
    """Reads write-ahead logs in threads."""

    def __init__(self, store: Store, executor: Executor, new_id: Callable[[], bytes]) -> None:
        self._store = store
        self._executor = executor
        self._new_id = new_id

    def _in_thread(self, work: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    async def take_over(
        self, wal: WalId, partitions: Mapping[PartitionId, TakenPartition]
    ) -> FoundRecords:
        """What counts; no earlier leader's write is acknowledged from now on if it is not among the entries.

        Raises OSError, CorruptWalObject.
        """
        for attempts_left in reversed(range(ATTEMPTS_MAX)):
            machine = WalTakeOver(wal, partitions)
            try:
                await self._fence(machine)
                break
            except FileNotFoundError:
                if not attempts_left:
                    raise
        return machine.found()

    async def _fence(self, machine: WalTakeOver) -> None:
        await self._list(machine)
        while (fence := machine.next_fence()) is not None:
            place, fenced = fence
            data = encode_fence(self._new_id(), fenced)
            header, is_ours = await self._in_thread(self._put_fence, machine.wal, place, data)
            machine.put(place, header, is_ours=is_ours)
            await self._list(machine)

    async def _list(self, machine: WalTakeOver) -> None:
        """Read the objects that were not read yet, and the newest checkpoint.

        What was erased before the listing is in it: it was put first, and no object's path comes after its.
        """
        known = machine.known_to
        start_after = object_path(machine.wal, known - 1) if known else ""
        paths = await self._in_thread(self._paths, machine.wal, start_after)
        numbers = [each for path in paths if (each := checkpoint_number(path)) is not None]
        newest = max(numbers, default=-1)
        if newest > machine.checkpoint_number:
            path = checkpoint_path(machine.wal, newest)
            checkpoint = await self._in_thread(read_header, self._store, path)
            machine.read_checkpoint(newest, checkpoint)
        listed = [place for path in paths if (place := place_of(path)) is not None]
        places = [place for place in listed if place not in machine.headers]
        shares = [
            places[at : at + HEADERS_A_THREAD] for at in range(0, len(places), HEADERS_A_THREAD)
        ]
        for read in await asyncio.gather(
            *(self._in_thread(self._headers, machine, share) for share in shares)
        ):
            for place, header in read:
                machine.read(place, header)

    def _paths(self, wal: WalId, start_after: str) -> list[str]:
        return [each.path for each in self._store.list(wal_folder(wal), start_after=start_after)]

    def _headers(self, machine: WalTakeOver, places: Sequence[int]) -> list[tuple[int, WalHeader]]:
        """In a thread: what these objects have of the partitions that are taken over."""
        found = []
        for place in places:
            header = read_header(self._store, object_path(machine.wal, place))
            entries = tuple(each for each in header.entries if each.key in machine.partitions)
            found.append((place, header._replace(entries=entries)))
        return found

    def _put_fence(self, wal: WalId, place: int, data: bytes) -> tuple[WalHeader, bool]:
        """What is at this place now, and whether it is the fence."""
        path = object_path(wal, place)
        fence = decode_header(data)
        if self._store.put_if_absent(path, data):
            return fence, True
        found = read_header(self._store, path)
        return found, found.object_id == fence.object_id

    async def bodies(self, wal: WalId, place: int, entries: Sequence[FoundEntry]) -> list[bytes]:
        """The record batches of these entries of one object. Raises OSError."""
        start = min(each.entry.position for each in entries)
        end = max(each.entry.position + each.entry.length for each in entries)
        path = object_path(wal, place)
        data = await self._in_thread(self._store.read_range, path, start, end - start)
        if len(data) < end - start:
            raise CorruptWalObject(f"{path}: {len(data)} bytes from {start}, not {end - start}")
        cut = [(each.entry.position - start, each.entry.length) for each in entries]
        return [data[at : at + length] for at, length in cut]
