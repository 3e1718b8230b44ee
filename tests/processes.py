"""Brokers of ours as real processes: started, stopped, killed; for demo, tests and benchmarks alike."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
ASKING_PAUSE_MAX_S = 0.5


class BrokerDied(RuntimeError):
    """The process ended before it was ready; the message holds the end of its log."""


class BrokerProcess:
    """``python -m broker`` with its data and lake below ``folder``; its log goes to ``folder/broker.log``.

    ``overrides`` are settings by Kafka's names. The port is a free one unless ``listeners`` says otherwise. It stays
    the same, so that clients find a restarted broker again, and is nobody else's while the broker is away.
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
        # Words before the command, such as those that run it in a namespace.
        self.prefix: Sequence[str] = ()
        # The program: this checkout's broker, or another one.
        self.program: Sequence[str] = (sys.executable, "-m", "broker")
        self.process: subprocess.Popen[str] | None = None
        self.bootstrap = ""
        self._held: list[socket.socket] = []
        for made in _MADE:
            made.append(self)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        words = [*self.prefix, *self.program]
        for name, value in self.overrides.items():
            words += ["--override", f"{name}={value}"]
        return words

    def start(self) -> BrokerProcess:
        """Start it and wait for the line ``ready <host>:<port>``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hold_ports()
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
        return self

    def _hold_ports(self) -> None:
        """Bind the port without listening: no other process is given it as a free port, and the broker can bind it."""
        named = []
        for listener in str(self.overrides["listeners"]).split(","):
            name, any_port, rest = listener.partition("://127.0.0.1:0")
            if any_port and not rest:
                held = socket.socket()
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", 0))
                self._held.append(held)
                listener = f"{name}://127.0.0.1:{held.getsockname()[1]}"
            named.append(listener)
        self.overrides["listeners"] = ",".join(named)

    def address(self, listener: str) -> str:
        """The address of the listener with this name; ``bootstrap`` is that of the first listener."""
        named = (each.split("://") for each in str(self.overrides["listeners"]).split(","))
        return dict(named)[listener]

    def metrics(self) -> str:
        """What it shows on its ``metrics.port``."""
        url = f"http://127.0.0.1:{self.overrides['metrics.port']}/metrics"
        with urllib.request.urlopen(url, timeout=READY_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
        return text

    def metric(self, name: str) -> float:
        """The sum of the samples whose names begin so."""
        lines = self.metrics().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def stop(self) -> int:
        """Send SIGTERM; returns the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Send SIGKILL; returns the exit status."""
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


# For each open block of `ended_when_it_fails` the brokers that were made in it.
_MADE: list[list[BrokerProcess]] = []


@contextlib.contextmanager
def ended_when_it_fails() -> Iterator[None]:
    """If the block fails, kill the brokers that were made in it and still run."""
    made: list[BrokerProcess] = []
    _MADE.append(made)
    try:
        yield
    except BaseException:
        for each in made:
            each.kill()
        raise
    finally:
        _MADE.pop()


class BrokerCluster:
    """Brokers as processes on one lake, numbered from 1; sessions are short, so that tests need not wait for long."""

    SETTINGS: Mapping[str, object] = {
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 300,
        "controller.lease.interval.ms": 500,
        "remote.log.storage.system.enable": "false",
    }

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        overrides: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.brokers = {
            node_id: BrokerProcess(
                folder / f"broker-{node_id}",
                {
                    **self.SETTINGS,
                    "node.id": node_id,
                    "lake.uri": folder / "lake",
                    **(overrides or {}),
                },
                environment,
            )
            for node_id in range(1, count + 1)
        }

    def __getitem__(self, node_id: int) -> BrokerProcess:
        return self.brokers[node_id]

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers: every broker that was ever started."""
        return ",".join(each.bootstrap for each in self.brokers.values() if each.bootstrap)

    def start(self) -> BrokerCluster:
        """Start all brokers that do not run; they are unfenced when this returns."""
        waiting = [each for each in self.brokers.values() if not each.running()]
        with ThreadPoolExecutor(max(1, len(waiting))) as pool:
            for started in [pool.submit(each.start) for each in waiting]:
                started.result()
        return self

    def stop(self) -> None:
        """Send SIGTERM to all brokers at once, and kill those that do not end."""
        for each in self.brokers.values():
            if each.running():
                os.kill(each.pid, signal.SIGCONT)
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for stopped in [pool.submit(each.stop) for each in self.brokers.values()]:
                stopped.result()


@contextlib.contextmanager
def cluster(
    folder: Path,
    count: int = 3,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[BrokerCluster]:
    """A cluster of started brokers, which are stopped on the way out."""
    brokers = BrokerCluster(folder, count, overrides, environment)
    try:
        yield brokers.start()
    finally:
        brokers.stop()


def wait_until(
    what: str, condition: object, *, timeout_s: float = 120.0, every_s: float = 0.05
) -> None:
    """Wait until ``condition()`` is true; ``what`` names it in the error.

    A condition may take CPU time (it may read a table), so each pause is twice as long as the look before it took, up
    to ASKING_PAUSE_MAX_S, and at least ``every_s``.
    """
    assert callable(condition)
    asked = time.monotonic()
    deadline = asked + timeout_s
    while not condition():
        answered = time.monotonic()
        if answered > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(max(every_s, min(2 * (answered - asked), ASKING_PAUSE_MAX_S)))
        asked = time.monotonic()
