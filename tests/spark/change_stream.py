"""A database whose changes become records: PostgreSQL, and Kafka Connect with Debezium's connector, as processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_conf import jars
from spark_conf.java import java_command
from tests.apache_kafka import free_ports
from tests.pages import own_blocks
from tests.processes import wait_until

PAGE = "docs/how-to/database-changes.md"
PROGRAMS = Path("/usr/lib/postgresql")
USER = "postgres"
DATABASE = "shop"
START_TIMEOUT_S = 120
LOGICAL = ("-c", "wal_level=logical")
LOGS_BY = """
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n
"""


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, the newest version's; None where it is not installed."""
    return max(PROGRAMS.glob("*/bin"), default=None, key=lambda path: int(path.parent.name))


@dataclass(frozen=True, slots=True)
class Database:
    """A server of PostgreSQL that runs."""

    folder: Path
    port: int

    def run(self, statements: str) -> list[list[str]]:
        """Run SQL; the rows of the last statement, as text."""
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", USER, DATABASE)
        command = ["psql", "-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1", *where]
        done = subprocess.run(
            command, input=statements, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]


@contextlib.contextmanager
def running_database(
    folder: Path, port: int | None = None, options: Sequence[str] = LOGICAL
) -> Iterator[Database]:
    """A new server with an empty database `shop`; by default its write-ahead log can be read by rows."""
    found = programs()
    assert found is not None
    # PostgreSQL refuses to run as root.
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    prefix = as_user if os.geteuid() == 0 else []
    data = folder / "postgres"
    data.mkdir()
    if prefix:
        shutil.chown(data, USER, USER)
        for parent in data.parents:
            if not parent.stat().st_mode & 0o001 and parent.stat().st_uid == os.geteuid():
                parent.chmod(parent.stat().st_mode | 0o011)
    port = port or free_ports(1)[0]
    made = [*prefix, str(found / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "-N"]
    subprocess.run(made, check=True, capture_output=True)
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "fsync": "off",
    }
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    words += options
    with (folder / "postgres.log").open("wb") as log:
        command = [*prefix, str(found / "postgres"), "-D", str(data), *words]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    ready = [str(found / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    try:
        wait_until(
            "PostgreSQL to accept connections",
            lambda: subprocess.run(ready, check=False).returncode == 0,
            timeout_s=START_TIMEOUT_S,
        )
        where = ["-h", "127.0.0.1", "-p", str(port), "-U", USER]
        subprocess.run([str(found / "createdb"), *where, DATABASE], check=True)
        yield Database(folder, port)
    finally:
        # At SIGTERM it would wait until its clients have gone.
        process.send_signal(signal.SIGINT)
        process.wait()


def connect_command(folder: Path, program: str, *files: str) -> list[str]:
    """What starts Kafka Connect by a class of its command line and files of the folder."""
    (folder / "log4j2.properties").write_text(LOGS_BY)
    command = [java_command(), *jars.QUICK_JAVA, "-cp", f"{jars.fetch('debezium')}/*"]
    command += [f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"]
    command += [f"org.apache.kafka.connect.cli.{program}"]
    return [*command, *(str(folder / each) for each in files)]


@contextlib.contextmanager
def running_connect(
    folder: Path, bootstrap: str, database: Database, instead: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Debezium by the page's files, with some texts replaced; goes on where one of the same folder was killed."""
    (port,) = free_ports(1)
    here = {
        "127.0.0.1:9092": bootstrap,
        "database.port=5432": f"database.port={database.port}",
        "connect.offsets": str(folder / "connect.offsets"),
        "plugin.path=plugins": f"listeners=HTTP://127.0.0.1:{port}\nplugin.discovery=only_scan",
        **instead,
    }
    files = own_blocks(PAGE, __file__)
    for block in files:
        text = block.code
        for written, used in here.items():
            text = text.replace(written, used)
        (folder / block.title).write_text(text)
    command = connect_command(folder, "ConnectStandalone", *(block.title for block in files))
    with (folder / "connect.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
