"""Schema registries as processes, which answer by Confluent's API; and confluent-kafka's writer for them."""

from __future__ import annotations

import contextlib
import json
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
from tests.clients.suites.allowances import suites
from tests.clients.suites.building import built, python_of
from tests.processes import wait_until
from tests.spark.topics import Topic

START_TIMEOUT_S = 120
_HAS_PRIMARY = "master_available"


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Apicurio's address while it runs; its schemas are in its memory."""
    (packed,) = jars.fetch("apicurio").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    (runner,) = folder.glob("*-runner.jar")
    (port,) = free_ports(1)
    settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    words = [java_command(), *jars.QUICK_JAVA, "-jar", str(runner)]
    with _running(words, settings, folder, f"http://127.0.0.1:{port}/apis/ccompat/v7") as url:
        yield url


@contextlib.contextmanager
def running_karapace(folder: Path, bootstrap: str) -> Iterator[str]:
    """Karapace's address while it runs; its schemas are in a topic of the broker. Raises CannotBuild."""
    built(suites()["karapace"], None)
    (port,) = free_ports(1)
    settings = {
        "PYTHONPATH": "",
        "karapace_bootstrap_uri": bootstrap,
        "karapace_host": "127.0.0.1",
        "karapace_advertised_hostname": "127.0.0.1",
        "karapace_port": str(port),
        "karapace_protobuf_runtime_directory": str(folder),
        "karapace_log_level": "INFO",
    }
    words = [str(python_of("karapace")), "-m", "karapace"]
    # Until it is the primary it forwards what it is to register.
    with _running(words, settings, folder, f"http://127.0.0.1:{port}", _HAS_PRIMARY) as url:
        yield url


@contextlib.contextmanager
def _running(
    words: list[str], settings: dict[str, str], folder: Path, url: str, path: str = "subjects"
) -> Iterator[str]:
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            words, env={**os.environ, **settings}, cwd=folder, stdout=log, stderr=log
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        with contextlib.suppress(URLError, OSError), urlopen(f"{url}/{path}") as answer:
            return path != _HAS_PRIMARY or json.load(answer)["master_available"]
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
