"""docs/reference/security.md: a broker takes its settings as they stand there, and Kafka's tool its commands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from broker.config.properties import parse_properties
from tests.certificates import Authority
from tests.pages import own_blocks
from tests.peer.jvm import TOOLS, Jvm
from tests.processes import running_broker

pytestmark = pytest.mark.jars

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
MECHANISM = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    **{
        f"listener.name.{name}.plain.sasl.jaas.config": (
            f'{PLAIN} username="broker" password="b" user_broker="b";'
        )
        for name in ("inside", "outside")
    },
}


def test_the_settings_are_taken_and_the_commands_do_what_they_say(jvm: Jvm, tmp_path: Path) -> None:
    """Beside the page's listeners there is one for the tool, since the commands name no --command-config."""
    blocks = own_blocks("docs/reference/security.md", __file__)
    authority = Authority(tmp_path)
    here = {
        "/etc/kafka/broker.pem": str(authority.issue("broker").both_file),
        "/etc/kafka/authority.pem": str(authority.file),
        "/etc/kafka/new.pem": str(authority.issue("broker").both_file),
        "INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:9094": (
            "TOOL://127.0.0.1:0,INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"
        ),
        "INSIDE:SASL_SSL,OUTSIDE": "TOOL:PLAINTEXT,INSIDE:SASL_SSL,OUTSIDE",
    }

    def replaced(text: str) -> str:
        for written, used in here.items():
            text = text.replace(written, used)
        return text

    settings = dict(MECHANISM)
    for block in blocks:
        if block.language == "properties":
            settings |= {each.key: each.value for each in parse_properties(replaced(block.code))}
    # Where a client is sent is told by the test's own listeners, whose ports are not known before.
    assert "kafka.example.com" in settings.pop("advertised.listeners")
    with running_broker(tmp_path / "broker", settings) as broker:
        here["broker1.internal:9092"] = broker.bootstrap
        commands = [b.code for b in blocks if b.language == "sh"]
        assert len(commands) == 3
        for command in commands:
            tool, *words = shlex.split(replaced(command))
            assert tool == "kafka-configs.sh"
            told = jvm.run(f"{TOOLS}.ConfigCommand", *words)
            assert "Completed updating config" in told
        where = ("--bootstrap-server", broker.bootstrap, "--describe")
        alice = jvm.run(
            f"{TOOLS}.ConfigCommand", *where, "--entity-type", "users", "--entity-name", "alice"
        )
        assert "producer_byte_rate=1048576.0" in alice
        assert "SCRAM-SHA-256=iterations=8192" in alice
