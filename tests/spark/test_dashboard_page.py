"""docs/get-started/dashboard.md: followed block by block, its containers' services as plain processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose_machine import ComposeMachine
from tests.pages import ROOT, PageReader, blocks_of, own_blocks
from tests.processes import wait_until
from tests.spark.change_stream import DATABASE, connect_command, programs, running_database
from tests.spark.java import QUICK_JAVA

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed"),
]
PSQL = "docker compose exec -T postgres psql -U postgres"
# Tables appear some time after records do: a query is typed again and again until it shows them.
PATIENCE_S = 600


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[ComposeMachine]:
    """All services of the profile."""
    running = ComposeMachine(tmp_path)
    given = running.services["postgres"]
    program, *options = given["command"]
    assert (program, given["environment"]["POSTGRES_DB"]) == ("postgres", DATABASE)
    with running_database(tmp_path, running.port("postgres", 5432), options):
        try:
            running.start_cluster()
            start_connect(running, tmp_path)
            start_pipelines(running)
            yield running
        finally:
            running.stop()


def start_connect(machine: ComposeMachine, folder: Path) -> None:
    """By the settings that the image's script makes of variables."""
    given = machine.environment("connect")
    settings = {name.lower().replace("_", "."): value for name, value in given.items()} | {
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "plugin.discovery": "only_scan",
        "listeners": f"http://127.0.0.1:{machine.port('connect', 8083)}",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    (folder / "connect.properties").write_text("\n".join(lines))
    machine.start("connect", connect_command(folder, "ConnectDistributed", "connect.properties"))


def start_pipelines(machine: ComposeMachine) -> None:
    given = machine.services["pipelines"]
    program, *words = (*given["entrypoint"], *given["command"])
    assert program == "python"
    words = [machine.here("pipelines", word) for word in words]
    machine.start("pipelines", [sys.executable, *words], JDK_JAVA_OPTIONS=QUICK_JAVA)


def test_a_dashboard_shows_typed_flights_and_the_database_as_it_is(
    machine: ComposeMachine, tmp_path: Path
) -> None:
    instead = {
        f"{PSQL} shop": f"psql -h 127.0.0.1 -p {machine.port('postgres', 5432)} -U postgres shop",
        **{
            each: machine.here(service, each)
            for service, each in (
                ("broker-1", "localhost:19092"),
                ("connect", "localhost:8083"),
            )
        },
        '"database.hostname": "postgres"': '"database.hostname": "127.0.0.1"',
        '"5432"': f'"{machine.port("postgres", 5432)}"',
    }
    reader = PageReader(
        tmp_path,
        instead,
        KAFKA_DS_BOOTSTRAP_SERVER=machine.here("broker-1", "127.0.0.1:9092"),
        PYTHONPATH=str(ROOT),
        **machine.environment("broker-1"),
    )
    (flights,) = (
        each
        for each in blocks_of(ROOT / "docs/get-started/columns.md")
        if each.title == "flights.py"
    )
    reader.follow(flights)

    def is_shown(command: str, output: str) -> bool:
        done = reader.run(command, PATIENCE_S)
        return done.stdout == output

    for block in own_blocks("docs/get-started/dashboard.md", __file__):
        for command, output in block.commands if block.language == "console" else ():
            if command.startswith("kafka-ds sql"):
                wait_until(
                    output,
                    lambda c=command, o=output: is_shown(c, o),
                    timeout_s=PATIENCE_S,
                    every_s=1,
                )
        reader.follow(block)
