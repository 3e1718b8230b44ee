"""A copy of the lake in another region, made object by object, in any order, late, as bucket replication makes it.

What happens to one object happens to its copy in that order; objects wait for nobody. An object that is deleted before
its turn never comes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

from tests.fakes.store import MemoryStore
from tests.sim.world import World

NOTICE_SECONDS = 0.1
# How long an object waits at most, and how many of them do.
LATE = ((0.3, 0.6), (2.0, 0.3), (8.0, 0.08), (25.0, 0.02))
# What is there when the copy begins comes soon.
BEGIN_SECONDS = 1.5
# Now and then nothing is copied for a while.
STALLS = 0.01
STALL_SECONDS_MAX = 4.0
LAST_CHECKPOINT = "_last_checkpoint"
# The controller's lease, which the documentation leaves out of the copy, and files that are not whole yet.
LEASE = "_lease"


class Replicator:
    """Copies the lake's folder into a store."""

    def __init__(self, world: World, folder: str, target: MemoryStore) -> None:
        self._world = world
        self._folder = folder
        self._target = target
        self._known: dict[str, Any] = {}
        self._pending: set[str] = set()
        self._stalled_until = 0.0
        self.ever: set[str] = set()
        """Each object that the copy has ever had."""
        self.never = 0
        """How many objects were deleted before their turn."""

    async def run(self) -> None:
        """Copy until cancelled."""
        while True:
            self._notice()
            await asyncio.sleep(NOTICE_SECONDS)

    def _notice(self) -> None:
        """Look at what has come, changed or gone."""
        loop, random = self._world.loop, self._world.random
        if random.random() < STALLS:
            self._stalled_until = loop.time() + random.random() * STALL_SECONDS_MAX
        found = dict(self._objects())
        changed = [path for path, mark in found.items() if self._known.get(path) != mark]
        gone = [path for path in self._known if path not in found]
        for path in (*changed, *gone):
            if path not in self._pending:
                self._pending.add(path)
                loop.call_later(self._delay(), self._copy, path, context=Context())
        self._known = found

    def _delay(self) -> float:
        random = self._world.random
        now = self._world.loop.time()
        (longest,) = random.choices([each[0] for each in LATE], [each[1] for each in LATE])
        if now < BEGIN_SECONDS:
            longest = LATE[0][0]
        stalled = max(0.0, self._stalled_until - now)
        return stalled + random.random() * longest

    def _objects(self) -> Iterator[tuple[str, Any]]:
        """Each object's path, with something that changes when it does."""
        for folder, folders, names in os.walk(self._folder):
            folders.sort()
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), self._folder)
                if name.startswith(".") or LEASE in path:
                    continue
                file = Path(folder, name)
                if name == LAST_CHECKPOINT:
                    # It is written again and again, sometimes within one tick of the file system's clock.
                    yield path, file.read_bytes()
                else:
                    status = file.stat()
                    yield path, (status.st_ino, status.st_mtime_ns, status.st_size)

    def _copy(self, path: str) -> None:
        """Make the copy as the object is now."""
        self._pending.discard(path)
        try:
            data = Path(self._folder, path).read_bytes()
        except FileNotFoundError:
            self.never += path not in self.ever
            self._target.delete(path)
            return
        self._target.put_durable(path, data)
        self.ever.add(path)
