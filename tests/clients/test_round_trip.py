"""What one client wrote, each client reads: bytes of key, value and headers, timestamp, order."""

import pytest

from tests.clients.adaptors import PRODUCERS, READERS, Message
from tests.clients.messages import BEGAN_MS, CODECS, sendable, some_messages
from tests.processes import BrokerProcess
from tests.topics import create_topic


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", PRODUCERS)
def test_what_was_written_is_read_by_every_client(
    broker: BrokerProcess, topic: str, client: str, codec: str, idempotent: bool
) -> None:
    create_topic(broker.bootstrap, topic)
    messages = [sendable(client, message) for message in some_messages()]
    offsets = PRODUCERS[client](broker.bootstrap, topic, messages, codec, idempotent=idempotent)
    assert offsets == list(range(len(messages)))
    for name, read in READERS.items():
        assert read(broker.bootstrap, topic, len(messages)) == messages, name


def test_a_record_of_ten_mebibytes(broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    messages = [
        Message(b"k", b"\x00\xff" * (5 << 20), [], BEGAN_MS),
        Message(b"k", b"x", [], BEGAN_MS),
    ]
    PRODUCERS["librdkafka"](broker.bootstrap, topic, messages)
    for name, read in READERS.items():
        assert read(broker.bootstrap, topic, 2) == messages, name


def test_the_broker_gives_the_time_where_the_topic_says_so(
    broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, {"message.timestamp.type": "LogAppendTime"})
    PRODUCERS["librdkafka"](broker.bootstrap, topic, some_messages(5), "lz4")
    for name, read in READERS.items():
        found = read(broker.bootstrap, topic, 9)
        assert all(m.timestamp_ms > BEGAN_MS + 1_000_000 for m in found), name
        assert [m.value for m in found] == [m.value for m in some_messages(5)], name
