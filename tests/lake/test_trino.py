"""Trino reads a topic's table as docs/concepts/table.md says: the rows that DuckDB finds."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from spark_conf.jars import fetch
from tests import duck
from tests.command_line import CommandLine
from tests.pages import own_blocks
from tests.processes import BrokerProcess, running_broker, wait_until

JAVA_LEAST = 24
START_TIMEOUT_S = 180
PAGE = "docs/concepts/table.md"
COUNT = 3000
NO_NODE = "No nodes available to run query"


def java() -> str | None:
    """The launcher of an installed Java that Trino runs on: it asks for a newer one than Spark does."""
    for release in sorted(Path("/usr/lib/jvm").glob("*/release"), reverse=True):
        found = re.search(r'^JAVA_VERSION="(\d+)', release.read_text(), re.MULTILINE)
        if found and int(found[1]) >= JAVA_LEAST:
            return str(release.parent / "bin" / "java")
    return None


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(java() is None, reason=f"needs Java {JAVA_LEAST} in /usr/lib/jvm"),
]


class Trino:
    """One server of one node, with one catalog, below `folder`."""

    def __init__(self, folder: Path, catalog: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        (archive,) = fetch("trino").glob("*.tar.gz")
        folder.mkdir()
        # Files of several plugins are links to one: all of the archive is needed.
        subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
        (server,) = folder.glob("trino-server-*")
        (folder / "etc" / "catalog").mkdir(parents=True)
        (folder / "etc" / "catalog" / "lake.properties").write_text(catalog)
        (folder / "plugin").mkdir()
        (server / "plugin" / "delta-lake").rename(folder / "plugin" / "delta-lake")
        settings = {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": self.url.rpartition(":")[2],
            "node.internal-address": "127.0.0.1",
            "discovery.uri": self.url,
            "node.environment": "test",
            "plugin.dir": str(folder / "plugin"),
            "catalog.config-dir": str(folder / "etc" / "catalog"),
            "query.max-memory-per-node": "200MB",
        }
        config = folder / "etc" / "config.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        words = [str(java()), "-Xmx1g", "-XX:TieredStopAtLevel=1"]
        words += ["--add-modules=jdk.incubator.vector", f"-Dconfig={config}"]
        words += ["-cp", f"{server / 'lib'}/*", "io.trino.server.TrinoServer"]
        self.log = folder / "trino.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)

    def wait(self) -> None:
        def has_started() -> bool:
            said = self.log.read_text(errors="replace")
            assert self._process.poll() is None, said[-3000:]
            return "SERVER STARTED" in said

        wait_until("Trino", has_started, timeout_s=START_TIMEOUT_S)

    def rows(self, statement: str) -> list[list[Any]]:
        """By its client protocol; AssertionError with its message when it fails."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            found, complaint = self._answer(statement)
            # A server has started before its own node is known to run queries.
            if complaint != NO_NODE or time.monotonic() > deadline:
                assert complaint == "", complaint
                return found
            time.sleep(0.5)

    def _answer(self, statement: str) -> tuple[list[list[Any]], str]:
        given = Request(
            f"{self.url}/v1/statement", data=statement.encode(), headers={"X-Trino-User": "test"}
        )
        found: list[list[Any]] = []
        while True:
            with urlopen(given) as response:
                page = json.load(response)
            if "error" in page:
                return [], page["error"]["message"]
            found += page.get("data", [])
            if "nextUri" not in page:
                return found, ""
            given = page["nextUri"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        shutil.rmtree(self._folder)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    quickly = {"lake.max.lag.ms": 500, "remote.log.manager.task.interval.ms": 200}
    with running_broker(tmp_path / "broker", quickly) as running:
        kafka_ds = CommandLine(running.bootstrap, tmp_path)
        kafka_ds.ok("topic", "create", "orders", "--partitions", "2")
        typed = b"".join(b'%d:{"total": %d}\n' % (each, each) for each in range(COUNT))
        kafka_ds.ok("produce", "orders", "--key-separator", ":", typed=typed)
        wait_until("the lake", lambda: kafka_ds.json("tier", "status")[0]["lake_rows"] == COUNT)
        yield running


@pytest.fixture
def trino(broker: BrokerProcess, tmp_path: Path) -> Iterator[Trino]:
    """With the catalog of the page, but for where the lake is."""
    catalog, _ = own_blocks(PAGE, __file__)
    assert "local.location=/data/lake\n" in catalog.code
    running = Trino(tmp_path / "trino", catalog.code.replace("/data/lake", str(broker.lake)))
    try:
        running.wait()
        yield running
    finally:
        running.stop()


def test_trino_finds_what_duckdb_finds(broker: BrokerProcess, trino: Trino) -> None:
    _, block = own_blocks(PAGE, __file__)
    *makes, query = block.code.strip().rstrip(";").split(";\n")
    for statement in makes:
        trino.rows(statement)
    table = f"delta_scan('{broker.lake}/topics/orders')"
    columns = '"partition", "offset", leader_epoch, {}(key), {}(value)'
    ordered = 'FROM {} ORDER BY "partition", "offset"'
    here = f"SELECT {columns.format('decode', 'decode')} {ordered.format(table)}"
    there = (
        f"SELECT {columns.format('from_utf8', 'from_utf8')} {ordered.format('lake.topics.orders')}"
    )
    expected = [list(row) for row in duck.connect().execute(here).fetchall()]
    assert trino.rows(there) == expected
    assert len(expected) == COUNT
    tail = [[row[4], None] for row in expected if row[0] == 0 and row[1] >= 1000]
    assert sorted(trino.rows(query)) == sorted(tail)
    assert tail


def test_trino_sees_later_commits(broker: BrokerProcess, trino: Trino, tmp_path: Path) -> None:
    trino.rows("CREATE SCHEMA lake.topics")
    trino.rows("CALL lake.system.register_table('topics', 'orders', 'local:///topics/orders')")
    count = "SELECT count(*), count(DISTINCT key) FROM lake.topics.orders"
    assert trino.rows(count) == [[COUNT, COUNT]]
    CommandLine(broker.bootstrap, tmp_path).ok(
        "produce", "orders", "--key-separator", ":", typed=b"new:1\nnew:2\n"
    )
    wait_until("the new rows", lambda: trino.rows(count) == [[COUNT + 2, COUNT + 1]])
