"""A lake in a folder that is copied to another one while it changes, object by object in any order."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random
from types import TracebackType

PAUSE_S = 0.01
# Of the objects that wait the first is copied as often as any other: none waits for ever.
FIRST = 0.5


class LakeCopier:
    """Copies in a thread, until it is left; each object appears as a whole, as in a bucket."""

    def __init__(self, source: Path, target: Path, random: Random) -> None:
        self.source, self.target = source, target
        self._random = random
        self._stopping = threading.Event()
        self._known: dict[Path, tuple[int, int]] = {}
        self._waiting: list[Path] = []
        self.out_of_order = 0
        self.is_paused = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> LakeCopier:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def is_done(self) -> bool:
        """Whether everything that is there has been copied."""
        self._look()
        return not self._waiting

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            if self.is_paused:
                continue
            self._look()
            for _ in range(self._random.randint(0, 4)):
                self._copy_one()

    def _look(self) -> None:
        for path in sorted(self.source.rglob("*")):
            name = path.relative_to(self.source)
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            stamp = (found.st_size, found.st_mtime_ns)
            if path.suffix == ".tmp" or not path.is_file() or self._known.get(name) == stamp:
                continue
            self._known[name] = stamp
            if name not in self._waiting:
                self._waiting.append(name)

    def _copy_one(self) -> None:
        if not self._waiting:
            return
        at = 0 if self._random.random() < FIRST else self._random.randrange(len(self._waiting))
        self.out_of_order += at > 0
        name = self._waiting.pop(at)
        try:
            body = (self.source / name).read_bytes()
        except FileNotFoundError:
            return  # Deleted since.
        file = self.target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"{file.name}.tmp")
        temporary.write_bytes(body)
        os.replace(temporary, file)
