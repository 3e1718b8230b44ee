"""`kafka-ds demo`, which needs nothing but the package."""

import shutil
from pathlib import Path

from tests.command_line import CommandLine


def test_the_demo_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    kafka_ds = CommandLine(None, tmp_path, TMPDIR=str(temporary))
    said = kafka_ds.ok("demo", "--records", "2000", cwd=tmp_path)
    assert "2000 records produced to orders" in said
    assert "$ kafka-ds sql --lake " in said
    table = said.rpartition("city    orders")[2].splitlines()[1:6]
    assert [row.split()[0] for row in table] == ["Bergen", "Lima", "Oslo", "Porto", "Quito"]
    assert sum(int(row.split()[1]) for row in table) == 2_000
    # Compiled code stays: it is of use to the next start.
    assert not list(temporary.glob("kafka-ds-demo-*"))


def test_compiling_is_announced_only_when_it_happens(tmp_path: Path) -> None:
    kafka_ds = CommandLine(None, tmp_path)
    assert "--records" in kafka_ds.run("demo", "--records", "3").complaint  # Fewer than it shows.
    for _ in range(2):
        done = kafka_ds.run("demo", "--records", "1000", "--folder", "kept", cwd=tmp_path)
        assert done.status == 0, done.errors
        log = (tmp_path / "kept" / "broker.log").read_text()
        assert ("the broker compiles" in done.errors) == ("Compiling loops" in log)
        told = kafka_ds.run("demo", "--folder", "kept", cwd=tmp_path).complaint
        assert told == "--folder kept: it is not empty, and the demo needs a new one"
        shutil.rmtree(tmp_path / "kept")
    assert "the broker compiles" not in done.errors
