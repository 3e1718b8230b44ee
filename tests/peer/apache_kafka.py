"""Apache Kafka from its jars: one node as a process of its own, with its controller or a ZooKeeper, and its tools."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from spark_conf.java import java_command

CLUSTER_ID = "a2Fma2EtZHMtcGVlci0xMQ"
TOOL_OPTIONS = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# A test's broker lives for seconds: what a better compiler would take is never earned back.
BROKER_OPTIONS = ("-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
READY_TIMEOUT_S = 120.0
LOG4J = """rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %m (%c)%n
"""
# The same for Kafka before 4.
LOG4J_1 = """log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%p %m (%c)%n
"""


def java(jar_folder: Path, options: tuple[str, ...], *words: str) -> list[str]:
    return [java_command(), *options, "-cp", f"{jar_folder}/*", *words]


def tool(jar_folder: Path, name: str, *words: str, typed: str = "") -> str:
    """What a tool prints on both streams, that is given `typed` to read."""
    done = subprocess.run(
        java(jar_folder, TOOL_OPTIONS, name, *words),
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def dump(jar_folder: Path, files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    return tool(jar_folder, "org.apache.kafka.tools.DumpLogSegments", "--files", names, *options)


class ApacheKafka:
    """A broker whose data directory remains when it stops."""

    def __init__(
        self,
        jar_folder: Path,
        folder: Path,
        more: Mapping[str, object] | None = None,
        *,
        zookeeper: str | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        """`more`: settings besides those that a single node needs; `zookeeper`: its address, before Kafka 4.

        `listeners`: the protocols, by name, of listeners besides PLAINTEXT; `addresses` has their addresses.
        """
        self.folder = folder
        self.data = folder / "data"
        self.log_file = folder / "server.log"
        self._jars = jar_folder
        self._process: subprocess.Popen[bytes] | None = None
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        others = dict(listeners or {})
        ports = free_ports(len(others))
        self.addresses = {
            name: f"127.0.0.1:{free}" for name, free in zip(others, ports, strict=True)
        }
        named = {"PLAINTEXT": self.bootstrap, **self.addresses}
        served = ",".join(f"{name}://{address}" for name, address in named.items())
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **others}
        own: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{served},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": served,
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "controller.listener.names": "CONTROLLER",
        }
        if zookeeper is not None:
            own = {
                "broker.id": 1,
                "zookeeper.connect": zookeeper,
                "listeners": f"PLAINTEXT://{self.bootstrap}",
            }
        settings = {
            **own,
            "log.dirs": self.data,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            **(more or {}),
        }
        folder.mkdir(parents=True)
        self.properties = folder / "server.properties"
        self.properties.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        self._log4j = folder / "log4j2.properties"
        self._log4j.write_text(LOG4J)
        self._log4j_1 = folder / "log4j.properties"
        self._log4j_1.write_text(LOG4J_1)
        if zookeeper is None:
            words = ("format", "-t", CLUSTER_ID, "-c", str(self.properties))
            tool(jar_folder, "kafka.tools.StorageTool", *words)

    def start(self) -> None:
        """Start it and wait until it listens; its log file is new."""
        self.launch()
        self.listens()

    def launch(self) -> None:
        """Start the process, which does not listen yet."""
        options = (
            *BROKER_OPTIONS,
            f"-Dlog4j2.configurationFile={self._log4j}",
            f"-Dlog4j.configuration={self._log4j_1.as_uri()}",
        )
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                java(self._jars, options, "kafka.Kafka", str(self.properties)),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def listens(self) -> None:
        """Wait until it does."""
        assert self._process is not None
        wait_for_listener("Apache Kafka", self.bootstrap, self._process, self.log_file)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(120)
        finally:
            self._process.kill()
            self._process.wait()
            self._process = None

    def complaints(self) -> list[str]:
        """What it logged about the topics' logs at WARN or above since it was started."""
        lines = self.log_file.read_text().splitlines()
        about = ("log", "segment", "index", "snapshot", "recover", "checkpoint", "corrupt")
        return [
            line
            for line in lines
            if line.startswith(("WARN", "ERROR", "FATAL"))
            and any(word in line.lower() for word in about)
        ]


def wait_for_listener(
    what: str, address: str, process: subprocess.Popen[bytes], log_file: Path
) -> None:
    """Wait until a process takes connections; an AssertionError with its log's end if it dies."""
    host, port = address.split(":")
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, int(port)), 0.5).close()
            return
        except OSError:
            assert process.poll() is None, log_file.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{what} does not listen"
            time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
