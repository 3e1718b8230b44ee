"""A store in memory that loses answers, fails and stalls on demand, and a clock that tests move."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.store import NotWritten, StoreEntry
from kafka_ds.topic.names import CLUSTER_MARK


def begin_lake(folder: Path) -> None:
    """What the brokers of a cluster have made before one of them starts a worker."""
    (folder / CLUSTER_MARK).mkdir(parents=True, exist_ok=True)


class FakeLogClock:
    """A clock that goes on only when a test moves it, or by `sleep`."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.slept: list[float] = []

    def wall_ms(self) -> int:
        return self.now_ms

    def boot_ms(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ms += int(seconds * 1000)


class MemoryStore:
    """Objects by path. `before_put` and `after_put` are called around each exclusive put."""

    def __init__(self, clock: FakeLogClock | None = None) -> None:
        self.clock = clock or FakeLogClock()
        self.objects: dict[str, bytes] = {}
        self.modified: dict[str, int] = {}
        self.before_put: Callable[[str], None] = lambda path: None
        self.after_put: Callable[[str], None] = lambda path: None
        self.on_read: Callable[[str], None] = lambda path: None
        self.puts = 0
        self.lists = 0

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.puts += 1
        self.before_put(path)
        won = path not in self.objects
        if won:
            self._store(path, data)
        self.after_put(path)
        return won

    def put_durable(self, path: str, data: bytes) -> None:
        self._store(path, data)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        file = io.BytesIO()
        yield file
        self._store(path, file.getvalue())

    def read(self, path: str) -> bytes:
        self.on_read(path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.read(path)[start : start + length]

    def list(self, prefix: str, *, start_after: str = "") -> tuple[StoreEntry, ...]:
        self.lists += 1
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


def times(count: int, action: Callable[[], Any]) -> Callable[[str], None]:
    """A hook that acts on its first `count` calls for a commit."""
    left = [count]

    def hook(path: str) -> None:
        if path.endswith(".json") and left[0] > 0:
            left[0] -= 1
            action()

    return hook


def raise_timeout() -> None:
    raise TimeoutError("no answer")


def raise_not_written() -> None:
    raise NotWritten("refused")


SCHEMA_JSON = (
    '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'
)


def new_log(store: Any = None, clock: FakeLogClock | None = None) -> DeltaLog:
    """A log with a table of one column in it, at version 0."""
    clock = clock or FakeLogClock()
    log = DeltaLog(store or MemoryStore(clock), "table", clock=clock)
    log.create(schema_json=SCHEMA_JSON, partition_columns=(), configuration={})
    return log
