"""Kafka's console tools by TLS, with certificates, SCRAM and PLAIN; a plain listener shows what they did.

What CI runs of it is in `test_client_tools.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ds.protocol.messages.offsets import LATEST
from tests.apache_kafka import tool
from tests.peer.jvm import TOOLS, ToolFailed
from tests.peer.safe_listeners import WAYS, SafeListeners, comes_by, make_user, run_safely
from tests.peer.tools import TOPIC, Tools

pytestmark = pytest.mark.jars


@pytest.fixture(scope="module", autouse=True)
def user(tools: Tools) -> None:
    """The user of SCRAM."""
    make_user(tools)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_console_tools_do_by_tls_what_they_do_without(
    tools: Tools, safe: SafeListeners, kafka_jars: Path, way: str
) -> None:
    topic = f"by-{way}-console"
    where = comes_by(tools, way)
    config = ("--command-config", str(safe.client_file(way)))
    run_safely(tools, safe, way, "TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    assert len(tools.topic(topic).partitions) == 2
    words = ("--alter", "--entity-type", "topics", "--entity-name", topic)
    run_safely(tools, safe, way, "ConfigCommand", *words, "--add-config", "retention.ms=9000")
    assert tools.settings(TOPIC, topic)["retention.ms"] == ("9000", 1)
    told = run_safely(tools, safe, way, "TopicCommand", "--describe", "--topic", topic)
    assert "retention.ms=9000" in told

    words = (*where, *config, "--topic", topic, "--reader-property", "parse.key=true")
    lines = [f"{number}\tvalue {number}" for number in range(50)]
    tool(kafka_jars, f"{TOOLS}.ConsoleProducer", *words, typed="\n".join(lines) + "\n")
    ends = [tools.offset(topic, partition, LATEST) for partition in (0, 1)]
    assert sum(ends) == 50 and all(ends)
    words = (*where, *config, "--topic", topic, "--from-beginning", "--max-messages", "50")
    words += ("--group", topic, "--formatter-property", "print.key=true")
    told = tool(kafka_jars, f"{TOOLS}.consumer.ConsoleConsumer", *words)
    assert {line for line in told.splitlines() if "\t" in line} == set(lines)

    command = "consumer.group.ConsumerGroupCommand"
    rows = run_safely(tools, safe, way, command, "--describe", "--group", topic).splitlines()
    lags = {row.split()[2]: row.split()[3:6] for row in rows if row.startswith(topic)}
    assert lags == {str(number): [str(end), str(end), "0"] for number, end in enumerate(ends)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("scram", "invalid credentials"),
        ("plain", "Invalid username or password"),
        ("mutual", "Failed to process post-handshake messages"),  # an SslAuthenticationException
    ],
)
def test_a_tool_with_another_password_or_without_a_certificate_is_told_so(
    tools: Tools, safe: SafeListeners, way: str, why: str
) -> None:
    config = ("--command-config", str(safe.client_file(way, "wrong")))
    where = comes_by(tools, way)
    with pytest.raises(ToolFailed, match=why):
        tools.jvm.run(f"{TOOLS}.TopicCommand", *where, *config, "--list")
