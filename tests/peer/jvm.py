"""Apache Kafka's command lines in one Java process: a tool costs its work, not a start of Java.

A tool is run by its own `main` with the words of a command line. What it prints is caught, and `exit` by the seam that
Kafka's tools have for their own tests. One that does its last work when Java itself ends (VerifiableProducer) needs a
process of its own: `tests.apache_kafka.tool`. Tools run one after the other, as they share the process's streams.
The process is reached by py4j, which PySpark brings; it ends with us.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.java_gateway import (
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)
from py4j.protocol import Py4JJavaError

from spark_conf.java import java_command

OPTIONS = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
TOOLS = "org.apache.kafka.tools"


class ToolFailed(AssertionError):
    """A tool ended with another status than 0, or with an exception; the text is what it printed."""


class _Exit:
    """Kafka's Exit.Procedure: notes the status and ends the tool by an exception."""

    def __init__(self) -> None:
        self.status: int | None = None

    def execute(self, status: int, message: str | None) -> None:
        if self.status is None:
            self.status = status
        raise RuntimeError(f"exit {status}: {message}")

    class Java:
        implements = ("org.apache.kafka.common.utils.internals.Exit$Procedure",)


class Jvm:
    """One Java process with Kafka's classes."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway = gateway
        self._exit = _Exit()
        exits = gateway.jvm.org.apache.kafka.common.utils.internals.Exit
        exits.setExitProcedure(self._exit)
        exits.setHaltProcedure(self._exit)

    @property
    def classes(self) -> Any:
        """Java's packages, as attributes."""
        return self._gateway.jvm

    def run(self, name: str, *words: str) -> str:
        """What a tool prints on both streams; raises ToolFailed unless it ends well."""
        jvm = self._gateway.jvm
        system = jvm.java.lang.System
        buffer = jvm.java.io.ByteArrayOutputStream()
        stream = jvm.java.io.PrintStream(buffer, True)
        arguments = self._gateway.new_array(jvm.java.lang.String, len(words))
        for index, word in enumerate(words):
            arguments[index] = word
        main: Any = jvm
        for part in name.split("."):
            main = getattr(main, part)
        streams = system.out, system.err
        self._exit.status = None
        error: Exception | None = None
        system.setOut(stream)
        system.setErr(stream)
        try:
            main.main(arguments)
        except Py4JJavaError as raised:
            error = raised
        finally:
            system.setOut(streams[0])
            system.setErr(streams[1])
        text: str = buffer.toString()
        status = self._exit.status
        if status not in (None, 0) or (error is not None and status is None):
            raise ToolFailed(f"{name} {' '.join(words)}: status {status}\n{text}\n{error or ''}")
        return text

    def dump(self, files: list[Path], *options: str) -> str:
        """What Kafka's DumpLogSegments prints about them."""
        names = ",".join(str(file) for file in files)
        return self.run(f"{TOOLS}.DumpLogSegments", "--files", names, *options)


@contextlib.contextmanager
def kafka_jvm(jar_folder: Path) -> Iterator[Jvm]:
    """A Java process with the jars of a folder, ended on the way out."""
    port, process = launch_gateway(
        classpath=f"{jar_folder}/*",
        javaopts=OPTIONS,
        java_path=java_command(),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auto_convert=True),
        callback_server_parameters=CallbackServerParameters(
            port=0, daemonize=True, daemonize_connections=True
        ),
    )
    try:
        own_port = gateway.get_callback_server().get_listening_port()
        server = gateway.java_gateway_server
        server.resetCallbackClient(server.getCallbackClient().getAddress(), own_port)
        yield Jvm(gateway)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(120)
