"""A broker of ours as a real process: started, stopped, killed; for demo, tests and benchmarks alike."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class BrokerDied(RuntimeError):
    """The process ended before it was ready; the message holds the end of its log."""


class BrokerProcess:
    """``python -m broker`` with its data and lake below ``folder``; its log goes to ``folder/broker.log``.

    ``overrides`` are settings by Kafka's names. The port is a free one unless ``listeners`` says otherwise; after the
    first start it stays the same, so that clients find a restarted broker again.
    """

    def __init__(
        self,
        folder: Path,
        overrides: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.data = folder / "log"
        self.lake = folder / "lake"
        self.log_file = folder / "broker.log"
        self.overrides: dict[str, object] = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": self.data,
            "lake.uri": self.lake,
            **(overrides or {}),
        }
        self.environment = dict(environment or {})
        self.process: subprocess.Popen[str] | None = None
        self.bootstrap = ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "broker"]
        for name, value in self.overrides.items():
            words += ["--override", f"{name}={value}"]
        return words

    def start(self) -> BrokerProcess:
        """Start it and wait for the line ``ready <host>:<port>``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self.environment},
            )
        timer = threading.Timer(READY_TIMEOUT_S, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        timer.cancel()
        if not line.startswith("ready "):
            self.process.wait()
            tail = self.log_file.read_text(errors="replace")[-4000:]
            raise BrokerDied(f"exit status {self.process.returncode}, said {line!r}\n{tail}")
        self.bootstrap = line.split()[1]
        self.overrides["listeners"] = f"PLAINTEXT://{self.bootstrap}"
        return self

    def stop(self) -> int:
        """SIGTERM and the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL: the crash that recovery is for."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            status = process.wait(STOP_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
            self.process = None
        return status

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


@contextlib.contextmanager
def running_broker(
    folder: Path,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[BrokerProcess]:
    """A started broker that is stopped on the way out."""
    broker = BrokerProcess(folder, overrides, environment).start()
    try:
        yield broker
    finally:
        broker.stop()


def wait_until(
    what: str, condition: object, *, timeout_s: float = 30.0, every_s: float = 0.05
) -> None:
    """Wait until ``condition()`` is true; ``what`` names it in the error."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(every_s)
