"""A configuration is looked at before a broker is started with it."""

import json
from pathlib import Path

from click.testing import CliRunner

from broker.cli.main import program


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("broker.id=4\nlistners=x\nnum.partitions=many\n")
    done = CliRunner().invoke(program, ["config", "check", str(file)])
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "kafka-ds: broker.id=4 is not supported: use node.id=4 (server.properties line 1)",
        "kafka-ds: listners is not a setting of this broker: did you mean listeners? (server.properties line 2)",
        "kafka-ds: num.partitions=many is not an integer (server.properties line 3)",
    ]
    file.write_text("log.dirs=\nreplica.lag.time.max.ms=1\ngroup.consumer.assignors=\n")
    done = CliRunner().invoke(program, ["config", "check", str(file)])
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 3)
    file.write_text("listeners=SSL://127.0.0.1:9093\n")
    done = CliRunner().invoke(program, ["config", "check", str(file)])
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "listener SSL: neither ssl.keystore.location nor ssl.keystore.key is set" in done.stderr
    assert "no such file" in CliRunner().invoke(program, ["config", "check", "/nowhere"]).stderr


def test_values_and_where_they_come_from(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retention.hours=4\nssl.keystore.password=hush\n")
    words = ["config", "check", str(file), "--override", "node.id=2", "--json"]
    rows = json.loads(CliRunner().invoke(program, words).stdout)
    assert {row["setting"]: (row["value"], row["default"], row["origin"]) for row in rows} == {
        "log.retention.ms": (
            "14400000",
            "604800000",
            "server.properties line 1: log.retention.hours",
        ),
        "node.id": ("2", "1", "--override"),
        "ssl.keystore.password": ("(hidden)", None, "server.properties line 2"),
    }
    everything = json.loads(CliRunner().invoke(program, [*words, "--all"]).stdout)
    assert {
        "setting": "num.partitions",
        "value": "1",
        "default": "1",
        "origin": "default",
    } in everything
