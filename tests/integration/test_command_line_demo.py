"""`kafka-ds demo`, which needs nothing but the package."""

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
