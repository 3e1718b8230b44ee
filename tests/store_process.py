"""An object store's server as a process: its start, its log, its death."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

READY_TIMEOUT_S = 120


class StoreProcess:
    """A server at `port` with its files, and its log `store.log`, in `folder`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path, port: int) -> Iterator[Self]:
        """A server for the time of a test."""
        folder.mkdir(parents=True, exist_ok=True)
        server = cls(folder, port)
        try:
            yield server.start()
        finally:
            server.kill()

    def start(self) -> Self:
        """Launch it as a store with a bucket."""
        raise NotImplementedError

    def launch(self, command: Sequence[str]) -> None:
        """Start it, and wait until it accepts connections."""
        path = self.folder / "store.log"
        with path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            tail = path.read_text(errors="replace")[-2000:]
            assert self.process.poll() is None, tail
            assert time.monotonic() < deadline, tail
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
