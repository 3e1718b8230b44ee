"""Stores whose calls tests script: answered, delayed, refused, lost or raced."""

from __future__ import annotations

import contextlib
import io
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import IO, Any

from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import StoreEntry
from kafka_ds.topic.names import CLUSTER_MARK
from tests.fakes.clock import ManualClock

ALWAYS = math.inf
COMMITS = "*.json"
CALLS = frozenset(
    ("put_if_absent", "put_durable", "create", "read", "read_range", "list", "folders", "delete")
    + ("size", "make_durable")
)


def begin_lake(folder: Path) -> None:
    """What the brokers of a cluster have made before one of them starts a worker."""
    (folder / CLUSTER_MARK).mkdir(parents=True, exist_ok=True)


class Call:
    """A call that a script decides; whoever calls it lets the store do what was asked."""

    def __init__(self, path: str, rest: tuple[Any, ...], do: Callable[[], Any]) -> None:
        self.path, self.rest, self._do = path, rest, do

    def __call__(self) -> Any:
        return self._do()


class Hold:
    """What threads wait for."""

    def __init__(self) -> None:
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        self.goes_on.wait()


Act = Callable[[Call], Any]
Error = Exception | type[Exception]


class Scripted:
    """Makes a store's calls go as a test says: the first of its scripts that fits a call acts instead of the store."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.calls: list[tuple[str, str]] = []
        """Each call and its path."""
        self._scripts: list[list[Any]] = []
        self._lock = threading.Lock()
        super().__init__(*arguments, **named)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return partial(self._called, name, found) if name in CALLS else found

    def _called(self, name: str, real: Any, path: str, *rest: Any, **named: Any) -> Any:
        with self._lock:
            self.calls.append((name, path))
            fitting = (
                each
                for each in self._scripts
                if name in each[1] and fnmatchcase(path, each[2]) and each[3] > 0
            )
            script = next(fitting, None)
            if script is not None:
                script[3] -= 1
        do = partial(real, path, *rest, **named)
        return do() if script is None else script[0](Call(path, rest, do))

    def count(self, name: str) -> int:
        """How many calls of this name there were."""
        return sum(each == name for each, _ in self.calls)

    def script(
        self, act: Act, calls: str = "put_if_absent", *, path: str = COMMITS, times: float = 1
    ) -> None:
        """Let `act` decide the next calls of these names whose paths fit."""
        self._scripts.append([act, calls.split(), path, times])

    @property
    def scripted(self) -> float:
        """How many calls are still to be decided by scripts."""
        return sum(script[3] for script in self._scripts)

    def race(self, action: Callable[[], Any], **where: Any) -> None:
        """Something else happens in the moment before the call."""
        self.script(lambda call: (action(), call())[1], **where)

    def delay(self, action: Callable[[], Any], **where: Any) -> None:
        """Something else happens before the answer is heard."""
        self.script(lambda call: (call(), action())[0], **where)

    def refuse(self, error: Error = TimeoutError, **where: Any) -> None:
        """The call fails, and nothing is done."""
        self.race(partial(_fail, error), **where)

    def lose(self, error: Error = TimeoutError, **where: Any) -> None:
        """The call is done, and its answer is lost."""
        self.delay(partial(_fail, error), **where)

    def hold(self, **where: Any) -> Hold:
        """The calls wait until they are let go."""
        held = Hold()
        self.race(held.wait, **where)
        return held

    def mend(self) -> None:
        """End all scripts."""
        self._scripts.clear()


def _fail(error: Error) -> None:
    raise error("no answer") if isinstance(error, type) else error


class FolderStore(Scripted, LocalStore):
    """A folder. With a clock its files have times by that, and nobody reaches them but by this store."""

    def __init__(self, root: object, clock: Any = None) -> None:
        super().__init__(str(root))
        self.clock = clock or ManualClock()
        self._has_times = clock is not None
        self._modified: dict[str, int] = {}

    def put_if_absent(self, path: str, data: bytes) -> bool:
        won = super().put_if_absent(path, data)
        if won:
            self._modified[path] = self.clock.wall_ms()
        return won

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        with super().create(path) as file:
            yield file
        self._modified[path] = self.clock.wall_ms()

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        found = super().list(prefix, start_after=start_after)
        if not self._has_times:
            return found
        # A file that the library wrote gets the time at which it is first seen here.
        return tuple(
            replace(each, modified_ms=self._modified.setdefault(each.path, self.clock.wall_ms()))
            for each in found
        )

    def local_path(self, path: str) -> str | None:
        return None if self._has_times else super().local_path(path)


class MemoryStore(Scripted):
    """Objects by path, in memory."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__()
        self.clock = clock or ManualClock()
        self.objects: dict[str, bytes] = {}
        self.modified: dict[str, int] = {}

    def put_if_absent(self, path: str, data: bytes) -> bool:
        won = path not in self.objects
        if won:
            self._store(path, data)
        return won

    def put_durable(self, path: str, data: bytes) -> None:
        self._store(path, data)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        file = io.BytesIO()
        yield file
        self._store(path, file.getvalue())

    def read(self, path: str) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.read(path)[start : start + length]

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        return tuple(
            StoreEntry(path=path, size=len(self.objects[path]), modified_ms=self.modified[path])
            for path in sorted(self.objects)
            if (not prefix or path.startswith(f"{prefix}/")) and path > start_after
        )

    def folders(self, prefix: str) -> tuple[str, ...]:
        rest = [path[len(prefix) + 1 :] for path in self.objects if path.startswith(f"{prefix}/")]
        return tuple(sorted({path.split("/")[0] for path in rest if "/" in path}))

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def size(self, path: str) -> int | None:
        return len(self.objects[path]) if path in self.objects else None

    def make_durable(self, path: str) -> None:
        self.read(path)

    def local_path(self, path: str) -> str | None:
        return None

    def uri(self, path: str) -> str:
        return f"memory:/{path}"

    def _store(self, path: str, data: bytes) -> None:
        self.objects[path] = bytes(data)
        self.modified[path] = self.clock.wall_ms()


SCHEMA_JSON = (
    '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'
)


def new_log(store: Any = None, clock: ManualClock | None = None) -> DeltaLog:
    """A log with a table of one column in it, at version 0."""
    clock = clock or ManualClock()
    log = DeltaLog(store or MemoryStore(clock), "table", clock=clock)
    log.create(schema_json=SCHEMA_JSON, partition_columns=(), configuration={})
    return log
