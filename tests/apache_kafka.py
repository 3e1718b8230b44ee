"""Apache Kafka from its jars: a node as a process of its own, with its controller or a ZooKeeper; clusters; tools."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spark_conf import jars
from spark_conf.java import java_command

CLUSTER_ID = "a2Fma2EtZHMtcGVlci0xMQ"
TOOL_OPTIONS = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# A test's broker lives for seconds: what a better compiler would take is never earned back.
BROKER_OPTIONS = ("-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
READY_TIMEOUT_S = 120.0
CONTROLLER_ID = 100
# What a controller has to be told as brokers are.
OF_ALL_NODES = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")
# Of a cluster's internal topics, where one node is enough.
INTERNAL_TOPICS = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}
LOG4J = """rootLogger.level={level}
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


def java(jar_folder: Path, options: Sequence[str], *words: str) -> list[str]:
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
        number: int = 1,
        controllers: Mapping[int, str] | None = None,
        options: Sequence[str] = BROKER_OPTIONS,
        level: str = "INFO",
    ) -> None:
        """`more`: settings besides those that a single node needs; `zookeeper`: its address, before Kafka 4.

        `listeners`: the protocols, by name, of listeners besides PLAINTEXT; `addresses` has their addresses.
        `controllers`: their addresses by the nodes' numbers, where this node is not the only one. `options`: Java's;
        `level`: of its log.
        """
        self.folder = folder
        self.data = folder / "data"
        self.log_file = folder / "server.log"
        self._jars = jar_folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        others = dict(listeners or {})
        controller, *ports = free_ports(2 + len(others))
        controllers = controllers or {number: f"127.0.0.1:{controller}"}
        served = [
            f"{name}://127.0.0.1:{port}"
            for name, port in zip(("PLAINTEXT", *others), ports, strict=True)
        ]
        is_controller = number in controllers
        at = [f"CONTROLLER://{controllers[number]}"] if is_controller else []
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **others}
        own: dict[str, object] = {
            "process.roles": "broker,controller" if is_controller else "broker",
            "node.id": number,
            "controller.quorum.voters": ",".join(
                f"{n}@{address}" for n, address in controllers.items()
            ),
            "listeners": ",".join(served + at),
            "advertised.listeners": ",".join(served),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "controller.listener.names": "CONTROLLER",
        }
        if zookeeper is not None:
            own = {"broker.id": 1, "zookeeper.connect": zookeeper, "listeners": served[0]}
        settings = {**own, "log.dirs": self.data, **INTERNAL_TOPICS, **(more or {})}
        named = (each.split("://") for each in str(settings["listeners"]).split(","))
        self.addresses = dict(named)
        self.bootstrap = next(iter(self.addresses.values()))
        folder.mkdir(parents=True)
        self.properties = folder / "server.properties"
        self.properties.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        self._log4j = folder / "log4j2.properties"
        self._log4j.write_text(LOG4J.format(level=level))
        self._log4j_1 = folder / "log4j.properties"
        self._log4j_1.write_text(LOG4J_1)
        if zookeeper is None:
            words = ("format", "-t", CLUSTER_ID, "-c", str(self.properties))
            tool(jar_folder, "kafka.tools.StorageTool", *words)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def address(self, listener: str) -> str:
        """The address of the listener with this name; ``bootstrap`` is that of the first listener."""
        return self.addresses[listener]

    def running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._process is not None

    def start(self) -> None:
        """Start it and wait until it listens; its log file is new."""
        self.launch()
        self.listens()

    def launch(self) -> None:
        """Start the process, which does not listen yet."""
        options = (
            *self._options,
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


class ApacheCluster:
    """Brokers of Apache Kafka's, numbered from 1, each with settings of its own.

    `is_combined`: each is a controller as well, as small clusters are run. Else a process is the controller that no
    test stops. `new`: makes a node.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[int, Mapping[str, object]],
        *,
        is_combined: bool = False,
        new: Any = None,
    ) -> None:
        numbers = list(settings) if is_combined else [CONTROLLER_ID]
        ports = free_ports(len(numbers))
        controllers = {
            number: f"127.0.0.1:{port}" for number, port in zip(numbers, ports, strict=True)
        }
        new = partial(new or partial(ApacheKafka, jars.fetch("kafka")), controllers=controllers)
        self._controllers = []
        if not is_combined:
            listener = f"CONTROLLER://{controllers[CONTROLLER_ID]}"
            own: dict[str, object] = {
                "process.roles": "controller",
                "listeners": listener,
                "advertised.listeners": listener,
            }
            own |= {name: settings[1][name] for name in OF_ALL_NODES if name in settings[1]}
            self._controllers = [new(folder / "controller", own, number=CONTROLLER_ID)]
        self.brokers: dict[int, ApacheKafka] = {
            number: new(folder / f"broker-{number}", own, number=number)
            for number, own in settings.items()
        }

    @property
    def bootstrap(self) -> str:
        """The first listeners of all brokers."""
        return ",".join(each.bootstrap for each in self.brokers.values())

    def start(self) -> None:
        """Start the controller and the brokers, as far as they do not run."""
        nodes = (*self._controllers, *self.brokers.values())
        waiting = [each for each in nodes if not each.running()]
        for each in waiting:
            each.launch()
        for each in waiting:
            each.listens()

    def stop(self) -> None:
        """Stop the brokers, then the controller, which they tell of it; without one the last would wait for others."""
        for each in (*self.brokers.values(), *self._controllers):
            (each.stop if self._controllers else each.kill)()


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
