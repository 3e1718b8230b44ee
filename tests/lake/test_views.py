"""The views over the system tables, in DuckDB, and that each is described; Spark's are in tests/spark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from broker.metadata.events import Event, TopicCreated, TopicDeleted
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.names import CLUSTER_METADATA, OFFSETS
from spark_conf.system_views import DUCKDB, FOLDER, SPARK, duckdb_views, main, questions, statements
from tests.duck import connect
from tests.fakes.clock import ManualClock
from tests.lake import known_cluster

TEXTS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.sql"))}
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    known_cluster.write(folder)
    return folder


@pytest.fixture(scope="module")
def views(lake: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as connection:
        assert duckdb_views(connection, lake) == sorted(questions())
        yield connection


@pytest.mark.parametrize("name", sorted(questions()))
def test_duckdb_sees_the_known_cluster(views: duckdb.DuckDBPyConnection, name: str) -> None:
    query, expected = known_cluster.EXPECTED[name]
    assert views.execute(query).fetchall() == expected


def test_a_topic_of_the_same_name_has_no_settings_of_the_one_before(tmp_path: Path) -> None:
    def created(topic_id: bytes, value: str) -> tuple[Event, ...]:
        made = TopicCreated(topic="again", topic_id=topic_id)
        return (
            made,
            known_cluster.setting("again", value.partition("=")[0], value.partition("=")[2]),
        )

    deleted = TopicDeleted(topic="again", topic_id=b"1" * 16)
    commits = (
        created(b"1" * 16, "retention.ms=1"),
        # One commit holds all decisions that waited for it.
        (deleted, *created(b"2" * 16, "segment.bytes=5")),
    )
    known_cluster.write_cluster(LocalStore(str(tmp_path)), ManualClock(), commits)
    with connect() as connection:
        duckdb_views(connection, tmp_path)
        found = connection.execute("SELECT topic, name, value FROM topic_configs").fetchall()
    assert found == [("again", "segment.bytes", "5")]


def test_views_of_which_others_are_made_scan_a_table_once() -> None:
    """Spark reads a table's log again for each scan in a plan: seconds, where the views are joined."""
    made_of = {word for text in TEXTS.values() for word in re.findall(r"(?:FROM|JOIN) (\w+)", text)}
    scans = {
        name: TEXTS[name].count("FROM ${") + TEXTS[name].count("JOIN ${")
        for name in made_of & set(TEXTS)
    }
    assert {name for name, count in scans.items() if count > 1} == set()


def test_each_view_is_in_the_docs_with_its_question() -> None:
    page = (DOCS / "reference" / "sql.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", page, re.MULTILINE))
    assert rows == questions()
    assert all(question.partition("?")[1] for question in rows.values())


def test_views_of_tables_that_are_not_there_are_not_made(tmp_path: Path) -> None:
    assert not list(statements(SPARK, tmp_path))
    known_cluster.write(tmp_path)
    (tmp_path / OFFSETS).rename(tmp_path / "elsewhere")
    made = {name for name, _ in statements(DUCKDB, tmp_path)}
    without = {
        "partition_offsets", "committed_offsets", "group_lag", "share_group_state", "tier_lag", "retention_debt",
    }  # fmt: skip
    assert made == set(questions()) - without
    (tmp_path / CLUSTER_METADATA).rename(tmp_path / "elsewhere too")
    made = {name for name, _ in statements(DUCKDB, tmp_path)}
    assert made == {
        "client_metrics", "dead_letters", "remote_segments", "remote_log_events", "segment_history",
        "gaps_and_overlaps",
    }  # fmt: skip


def test_the_statements_are_printed_for_command_lines(
    lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["views", str(lake), "--engine", "duckdb"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("LOAD delta;\n")
    query, expected = known_cluster.EXPECTED["group_lag"]
    with connect() as connection:
        connection.execute(printed)
        found: list[Any] = connection.execute(query).fetchall()
    assert found == expected


def test_whoever_reads_the_first_lines_alone_is_shown_no_traceback(lake: Path) -> None:
    words = [sys.executable, "-m", "spark_conf.system_views", str(lake)]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_a_lake_may_have_quotes_in_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "o'lake `1`"
    known_cluster.write(folder)
    query, expected = known_cluster.EXPECTED["remote_log_events"]
    with connect() as connection:
        assert duckdb_views(connection, folder) == sorted(questions())
        assert connection.execute(query).fetchall() == expected
    assert "o'lake ``1``/" in dict(statements(SPARK, folder))["remote_log_events"]
