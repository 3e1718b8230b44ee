"""Pure: Kafka's small text files: offset and epoch checkpoints, partition.metadata, meta.properties.

Files are byte for byte what Kafka writes. An empty file is valid, because Kafka creates these files before it writes
them. A truncated one is corrupt: it must not be read as a shorter list.
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
    """The content of a checkpoint file is invalid."""


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
    """The broker epoch; -1 for an empty file, which older versions write."""
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def encode_meta_properties(
    *, node_id: int, cluster_id: str, directory_id: bytes, date: str
) -> bytes:
    """The content of meta.properties; `date` has the format of Java's comment at the top of a properties file."""
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
    """All entries as strings, not validated."""
    properties = {}
    for line in data.decode("latin-1").splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith(("#", "!")):
            properties[key.strip()] = value.strip()
    return properties


def java_date(moment: tuple[int, int, int, int, int, int, int]) -> str:
    """A time (year, month, day, hour, minute, second, weekday; UTC) in the format of java.util.Date."""
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
        raise ValueError("truncated")  # Part of a number would also parse.
    if len(lines) < 2 or int(lines[0]) != VERSION:
        raise ValueError(f"version {lines[0]!r}")
    entries = [line for line in lines[2:] if line]
    if int(lines[1]) != len(entries):
        raise ValueError(f"{len(entries)} entries, expected {lines[1]}")
    return entries


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint("a checkpoint is not UTF-8") from error
