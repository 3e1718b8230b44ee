"""Pure: Kafka's small text files: offset and epoch checkpoints, partition.metadata, meta.properties.

Files are written byte for byte as Kafka writes them. A file that is read may be empty (Kafka creates these files before
it fills them); otherwise it is complete or corrupt: a truncated file must never be taken for a shorter list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_from_text, uuid_text

VERSION = 0
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class CorruptCheckpoint(Exception):
    """A file of kafka-ds or Kafka that does not hold what its name promises."""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """(topic, partition) → offset, as in recovery-point-offset-checkpoint."""
    return _encode(f"{topic} {part} {offset}" for (topic, part), offset in offsets.items())


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """(topic, partition) → offset; raises CorruptCheckpoint."""
    try:
        return {
            TopicPartition(topic, int(part)): int(offset)
            for topic, part, offset in (line.split(" ") for line in _lines(data))
        }
    except ValueError as error:
        raise CorruptCheckpoint(f"an offset checkpoint: {error}") from error


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """(leader epoch, start offset), as in leader-epoch-checkpoint."""
    return _encode(f"{epoch} {start}" for epoch, start in entries)


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """(leader epoch, start offset) in the order of the file; raises CorruptCheckpoint."""
    try:
        return [
            (int(epoch), int(start)) for epoch, start in (line.split(" ") for line in _lines(data))
        ]
    except ValueError as error:
        raise CorruptCheckpoint(f"leader-epoch-checkpoint: {error}") from error


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """The topic id, as in partition.metadata."""
    return f"version: {VERSION}\ntopic_id: {uuid_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> bytes:
    """The topic id; raises CorruptCheckpoint."""
    fields = dict(line.split(": ", 1) for line in _text(data).splitlines() if ": " in line)
    try:
        if int(fields["version"]) != VERSION:
            raise ValueError(f"version {fields['version']}")
        return uuid_from_text(fields["topic_id"].strip())
    except (KeyError, ValueError) as error:
        raise CorruptCheckpoint(f"partition.metadata: {error}") from error


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """The broker epoch, as in .kafka_cleanshutdown: the next registration names it (KIP-966)."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes) -> int:
    """The broker epoch, or -1: older files are empty, and it is enough that the file exists."""
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def encode_meta_properties(
    *, node_id: int, cluster_id: str, directory_id: bytes, date: str
) -> bytes:
    """`date` is in the form that Java writes into the comment at the top of a properties file."""
    lines = (
        "#",
        f"#{date}",
        f"node.id={node_id}",
        f"directory.id={uuid_text(directory_id)}",
        "version=1",
        f"cluster.id={cluster_id}",
    )
    return "".join(line + "\n" for line in lines).encode("latin-1")


def decode_meta_properties(data: bytes) -> dict[str, str]:
    """All entries, as texts; the caller checks which of them must be there."""
    properties = {}
    for line in data.decode("latin-1").splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", "!")):
            properties[key.strip()] = value.strip()
    return properties


def java_date(moment: tuple[int, int, int, int, int, int, int]) -> str:
    """Year, month, day, hour, minute, second, weekday (UTC) as java.util.Date prints them."""
    year, month, day, hour, minute, second, weekday = moment
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{_DAYS[weekday]} {_MONTHS[month - 1]} {day:02d} {clock} UTC {year}"


def _encode(lines: Iterable[str]) -> bytes:
    body = list(lines)
    return "".join(f"{line}\n" for line in (VERSION, len(body), *body)).encode()


def _lines(data: bytes) -> list[str]:
    text = _text(data)
    lines = text.splitlines()
    if not lines:
        return []
    if not text.endswith("\n"):
        raise ValueError("truncated")  # Half a number is a number too.
    if len(lines) < 2 or int(lines[0]) != VERSION:
        raise ValueError(f"version {lines[0]!r}")
    entries = [line for line in lines[2:] if line]
    if int(lines[1]) != len(entries):
        raise ValueError(f"{len(entries)} entries where {lines[1]} are announced")
    return entries


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint("a checkpoint is not a text") from error
