"""What several tests use: sendable, some_messages, fill."""

from collections.abc import Iterable
from dataclasses import replace

from tests.clients.adaptors import Message, librdkafka_produce
from tests.processes import BrokerProcess

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


BEGAN_MS = 1_700_000_000_000


def sendable(client: str, message: Message) -> Message:
    """kafka-python's producer refuses a header whose value is null, which the protocol knows."""
    if client != "kafka-python":
        return message
    return replace(message, headers=[header for header in message.headers if header[1] is not None])


def some_messages(count: int = 60) -> list[Message]:
    messages = [
        Message(b"key-%d" % i, b"value %d " % i * (i % 7 + 1), [("n", b"%d" % i)], BEGAN_MS + i)
        for i in range(count)
    ]
    return [
        *messages,
        Message(None, b"no key", [], BEGAN_MS + 100),
        Message(b"no value", None, [], BEGAN_MS + 99),
        Message(
            b"", b"", [("repeated", b"1"), ("repeated", b"2"), ("null", None), ("", b"")], BEGAN_MS
        ),
        Message(b"big", bytes(range(256)) * 2000, [], BEGAN_MS + 101),
    ]


def fill(broker: BrokerProcess, topic: str, numbers: Iterable[int], partition: int = 0) -> None:
    messages = [
        Message(b"k%d" % n, b"%d-%d" % (partition, n), [("n", b"%d" % n)], BEGAN_MS + n, partition)
        for n in numbers
    ]
    librdkafka_produce(broker.bootstrap, topic, messages)
