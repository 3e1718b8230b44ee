"""docs/operations/grafana.json: Grafana's types take it, and a real Prometheus answers what it and the alerts ask."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaException, Producer

from tests.apache_kafka import free_ports
from tests.command_line import CommandLine
from tests.pages import ROOT
from tests.processes import running_broker, wait_until

pytestmark = pytest.mark.slow

BOARD = (ROOT / "docs/operations/grafana.json").read_text()
ALERTS = (ROOT / "docs/how-to/monitor.md").read_text()
GRAFANA, TYPESCRIPT = "13.2.3", "7.0.2"
# By Grafana's variables: what a panel of an hour would put there, for a Prometheus that has run for seconds.
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m"}
# A request that as a whole is answered with an error: only such are counted.
REFUSED = {"transactional.id": "t", "transaction.timeout.ms": 2_000_000_000}
EVERY = (
    "scrape_configs: [{job_name: kafka, scrape_interval: 1s, static_configs: [{targets: ['%s']}]}]"
)


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm, and its registry")
def test_grafanas_types_take_the_board(tmp_path: Path) -> None:
    packages = [f"@grafana/schema@{GRAFANA}", f"typescript@{TYPESCRIPT}"]
    subprocess.run(["npm", "install", "--prefix", tmp_path, *packages], check=True, timeout=300)
    # A member of an enumeration is no text for TypeScript.
    board = BOARD.replace('"mode": "absolute"', '"mode": ThresholdsMode.Absolute')
    code = 'import { ThresholdsMode, type Dashboard } from "@grafana/schema";\n'
    (tmp_path / "board.ts").write_text(f"{code}export const board: Dashboard = {board};\n")
    options = "--noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler"
    compiler = tmp_path / "node_modules" / ".bin" / "tsc"
    done = subprocess.run(
        [compiler, *options.split(), "--target", "es2022", "board.ts"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus")
def test_prometheus_answers_each_question(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {
        "metrics.port": port,
        "lake.max.lag.ms": 300,
        "remote.log.manager.task.interval.ms": 500,
    }
    with (
        running_broker(tmp_path / "broker", settings) as broker,
        prometheus(tmp_path / "prometheus", f"127.0.0.1:{port}") as ask,
    ):
        kafka_ds = CommandLine(broker.bootstrap, tmp_path)
        kafka_ds.ok("produce", "orders", typed="a\nb\n")
        kafka_ds.ok("consume", "orders", "--group", "billing", "--no-follow")
        refused = Producer({"bootstrap.servers": broker.bootstrap, **REFUSED})
        with pytest.raises(KafkaException, match="INVALID_TRANSACTION_TIMEOUT"):
            refused.init_transactions(60)
        wait_until("the lake", lambda: kafka_ds.json("tier", "status")[0]["lag"] == 0)
        asked = [json.loads(each) for each in re.findall(r'"expr": ("(?:[^"\\]|\\.)*")', BOARD)]
        alerts = re.findall(r"^\| `([^`]+ (?:>|!=) \d+)`", ALERTS, re.MULTILINE)
        assert len(asked) > 30
        assert len(alerts) > 10
        for expression in asked:
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            wait_until(expression, lambda e=expression: ask(e), timeout_s=60)
        for expression in alerts:
            ask(
                expression
            )  # Most have nothing to tell; one that is not understood is an HTTPError.


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Any]:
    """One that scrapes this every second; a function that asks it."""
    folder.mkdir()
    (port,) = free_ports(1)
    (folder / "prometheus.yml").write_text(EVERY % target)

    def ask(expression: str) -> list[Any]:
        query = urlencode({"query": expression})
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}") as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
        return found

    def is_ready() -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/-/ready"):
                return True
        except URLError:
            return False

    words = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}",
    ]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stderr=log) as running,
    ):
        try:
            wait_until("Prometheus", is_ready)
            yield ask
        finally:
            running.terminate()
