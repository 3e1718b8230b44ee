"""Source and sink in a session of Spark Connect, whose server is another process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_ds.source.session.connect import LACKS, PLAN_CACHE, prepare
from spark_conf.pipelines.pipelines import Pipelines
from tests.pages import own_blocks
from tests.processes import wait_until
from tests.spark.java import QUICK_JAVA
from tests.spark.topics import Topic
from tests.spark.typed_tables import JSON_TOPIC, keep, send

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def running_server(folder: Path, port: int) -> Iterator[str]:
    """The address of a server that is started as the page says."""
    for name in (".venv", ".cache", "spark_conf"):
        (folder / name).symlink_to(ROOT / name)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.sql.shuffle.partitions": 1,
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    more = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    (block,) = own_blocks("docs/reference/spark.md", __file__)
    started = block.code.replace("spark-internal", f"{more} spark-internal")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": QUICK_JAVA}
    log = folder / "server.txt"
    with log.open("w") as output:
        server = subprocess.Popen(
            ["sh", "-c", started],
            env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def listens() -> bool:
            assert server.poll() is None, log.read_text()[-3000:]
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        wait_until("the server to listen", listens)
        yield f"sc://127.0.0.1:{port}"
    finally:
        # The shell's Java, too.
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_client_of_spark_connect_reads_and_writes_and_is_told_what_it_lacks(
    pipelines: Pipelines, topic: Topic, tmp_path: Path, free_port: int
) -> None:
    topic.create().produce(2000, size=3000)
    topic.wait_until_tiered()
    typed = Topic(topic.broker, f"{topic.name[:80]}-typed").create(partitions=1, **JSON_TOPIC)
    send(typed, b'{"n":1}', b'{"n":2}')
    keep(pipelines, typed)
    send(typed, b'{"n":3}')
    Topic(topic.broker, f"{topic.name}-copy").create(partitions=1)
    with running_server(tmp_path, free_port) as address:
        words = [address, topic.broker.bootstrap, topic.name, typed.name, tmp_path / "checkpoint"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.connect_client", *words],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count(LACKS) == 1
    seen = dict(json.loads(line) for line in done.stdout.splitlines())
    mistaken, catalog = seen.pop("mistaken_option"), seen.pop("catalog")
    assert "option 'subscribee' is unknown; did you mean 'subscribe'?" in mistaken
    assert catalog.startswith("RuntimeError: topic_catalog() does not support Spark Connect")
    assert seen == {
        "batch": [[0, 0], [0, 1], [0, 2], [1, 2]],
        "where": [["partition", "offset"], [[1, 0], [1, 1], [1, 2]]],
        "scan": [[[0, 1000], [1, 1000]], [[0, 998], [0, 999], [1, 998], [1, 999]]],
        "typed_scan": [1, 2, 3],
        # A DataFrame looks again, a view does not.
        "looks_again": [2000, 2000, 2010, 2000],
        "stream": [[2010, 2020], 0, 0, 0.0],
        "write": ["0", "1", "2"],
        "report": [3],
    }


class ConfiguredSession:
    """The settings of a session, and nothing else."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings, self.conf = settings, self

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value


@pytest.mark.parametrize(
    ("chosen", "left", "said"),
    [
        (None, "false", [LACKS]),
        ("false", "false", []),
        (
            "true",
            "true",
            [
                f"{LACKS}; with {PLAN_CACHE}=true so does a DataFrame, which only a new load() replaces"
            ],
        ),
    ],
)
def test_servers_plans_are_not_kept_unless_the_user_wants_it(
    chosen: str | None, left: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    session = ConfiguredSession({} if chosen is None else {PLAN_CACHE: chosen})
    for _ in range(2 if chosen is None else 1):
        prepare(session)  # type: ignore[arg-type]
    assert session.settings == {PLAN_CACHE: left}
    assert caplog.messages == said
