"""A schema registry as a process: Apicurio, which answers by Confluent's API; and confluent-kafka's writer for it."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from spark_conf import jars
from spark_conf.java import java_command
from spark_conf.pipelines.protobuf import compiled
from tests.apache_kafka import free_ports
from tests.processes import wait_until
from tests.spark.topics import Topic

START_TIMEOUT_S = 120


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Its address while it runs; its schemas are in its memory."""
    (packed,) = jars.fetch("apicurio").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    (runner,) = folder.glob("*-runner.jar")
    (port,) = free_ports(1)
    settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [java_command(), *jars.QUICK_JAVA, "-jar", str(runner)],
            env={**os.environ, **settings},
            cwd=folder,
            stdout=log,
            stderr=log,
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        with contextlib.suppress(URLError, OSError), urlopen(f"{url}/subjects"):
            return True
        return False

    try:
        wait_until("the registry to answer", answers, timeout_s=START_TIMEOUT_S)
        yield url
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def id_of(frame: bytes) -> int:
    """The schema id of a key or value."""
    return struct.unpack(">bI", frame[:5])[1]


def message_class(text: str, name: str, imports: tuple[tuple[str, str], ...] = ()) -> Any:
    """The class of a Protobuf schema's message; `imports` are texts by name."""
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(compiled(text, imports)).file:
        pool.Add(each)
    return GetMessageClass(pool.FindMessageTypeByName(name))


class Sender:
    """Writes what confluent-kafka's serializers make; each schema in a subject of its own, so that any may follow."""

    def __init__(self, topic: Topic, registry: str) -> None:
        self._topic = topic
        self._client = SchemaRegistryClient({"url": registry})
        self._of_messages: dict[type[Message], ProtobufSerializer] = {}

    def framed(self, schema: str, value: Any, field: str = MessageField.VALUE) -> bytes:
        settings = {"subject.name.strategy": lambda *_: f"{self._topic.name}-{hash(schema)}"}
        made = AvroSerializer(self._client, schema, conf=settings)(
            value, SerializationContext(self._topic.name, field)
        )
        assert made is not None
        return made

    def framed_message(self, value: Message, field: str = MessageField.VALUE) -> bytes:
        kind = type(value)
        if kind not in self._of_messages:
            settings = {
                "use.deprecated.format": False,
                "subject.name.strategy": lambda *_: f"{self._topic.name}-{id(kind)}",
                "reference.subject.name.strategy": lambda _, name: f"{self._topic.name}-{name}",
            }
            self._of_messages[kind] = ProtobufSerializer(kind, self._client, settings)
        made = self._of_messages[kind](value, SerializationContext(self._topic.name, field))
        assert made is not None
        return made

    def other(self, text: str, kind: str, *references: SchemaReference) -> int:
        subject = f"{self._topic.name}-{hash(text)}"
        return self._client.register_schema(subject, Schema(text, kind, list(references)))

    def referred(self, name: str, text: str, kind: str) -> SchemaReference:
        """A schema that others refer to by this name."""
        subject = f"{self._topic.name}-{name}-{hash(text)}"
        self._client.register_schema(subject, Schema(text, kind))
        return SchemaReference(name, subject, 1)

    def send(self, *records: tuple[bytes | None, bytes | None], headers: Any = None) -> None:
        producer = Producer({"bootstrap.servers": self._topic.broker.bootstrap})
        for key, value in records:
            producer.produce(self._topic.name, key=key, value=value, headers=headers)
        assert producer.flush(60) == 0
