"""A configuration is looked at before a broker is started with it."""

import json
from pathlib import Path

import pytest
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
    assert done.stderr == (
        "kafka-ds: listener SSL: neither ssl.keystore.location nor ssl.keystore.key is set: "
        "a listener with TLS needs a key (server.properties line 1)\n"
    )
    assert "no such file" in CliRunner().invoke(program, ["config", "check", "/nowhere"]).stderr


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "node.id=2\ngroup.coordinator.rebalance.protocols=consumer\n",
            "group.coordinator.rebalance.protocols lacks classic, which cannot be disabled (FILE line 2)",
        ),
        ("node.id=2\n= 4\n", "there is a value, but no name of a setting before it (FILE line 2)"),
        (
            "node.id=2\nlisteners=A://:1\n",
            "listeners: A is not in listener.security.protocol.map (FILE line 2)",
        ),
        (
            "listeners=SASL_SSL://:1\nnode.id=2\n",
            "sasl.enabled.mechanisms is empty: clients of the listener SASL_SSL could not authenticate (FILE line 1)",
        ),
        (
            "listeners=PLAINTEXT://:1\n\nadvertised.listeners=B://a:1\n",
            "advertised.listeners names B, which does not listen (FILE line 3)",
        ),
        (
            "log.retention.hours=1\nnode.id=2\nlog.local.retention.ms=3600001\n",
            "local.retention.ms=3600001 is more than retention.ms=3600000 (FILE line 3 and FILE line 1)",
        ),
    ],
)  # fmt: skip
def test_a_contradiction_is_told_with_its_lines(tmp_path: Path, lines: str, told: str) -> None:
    file = tmp_path / "server.properties"
    file.write_text(lines)
    done = CliRunner().invoke(program, ["config", "check", str(file)])
    assert done.exit_code == 1
    assert done.stderr == f"kafka-ds: {told.replace('FILE', file.name)}\n"


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
