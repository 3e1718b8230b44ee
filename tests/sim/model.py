"""What producers sent, and what each replica's log appended: tables, logs and readers are compared with this model.

It takes nothing from the tier. A log reports each append as it happens, so the model keeps what a lost disk, a
truncation or an unclean election removes later. It reads batches record by record, not with the code that makes tables.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka_ds.protocol.types import uuid_text
from kafka_ds.records.batch import BatchHeader, Record, iterate_headers, read_records, varint
from tests.sim.clients import History, Partition
from tests.sim.world import World

Headers = tuple[tuple[bytes, bytes | None], ...]
Place = tuple[str, int, int]
"""Topic id, partition, offset."""


class Content(NamedTuple):
    """The fields of a record that its producer sets."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @classmethod
    def of(cls, record: Record) -> Content:
        """Of a record as it was sent, or as it is in a log."""
        headers = tuple((bytes(key), _bytes(value)) for key, value in record.headers)
        return cls(_bytes(record.key), _bytes(record.value), headers, record.timestamp)


class ModelRow(NamedTuple):
    """A record in a log or in a table."""

    epoch: int
    content: Content
    batch: tuple[int, int, int, int]
    """First offset, producer id, producer epoch, first sequence."""


@dataclass(slots=True)
class SentHistory(History):
    """What clients were promised, and exactly what they sent: records of all shapes, found by their unique values."""

    sent: dict[bytes, Content] = field(default_factory=dict)

    def record(self, delta: int, now_ms: int, value: bytes) -> Record:
        lot = zlib.crc32(value)
        key = (None, b"", value, b"%d" % (lot % 5))[lot % 4]
        headers: Headers = ()
        if lot % 3 == 1:
            headers = ((b"source", value), (b"nothing", None), (b"source", b""))
        elif lot % 3 == 2 and lot % 5 == 0:
            headers = ((b"\xff\xfe", value),)  # Not UTF-8: a table keeps the bytes.
        made = Record(delta, now_ms - lot % 40, key, value, headers)
        self.sent[value] = Content.of(made)
        return made


class HistoryModel:
    """Every record that was ever in a log of these topics, by offset and leader epoch."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics
        self.history = SentHistory()
        self._checksums: dict[tuple[Place, int], int] = {}
        self._rows: dict[Place, dict[int, ModelRow | None]] = {}
        """By leader epoch; None for a control record."""
        self._transactional: set[tuple[Place, int]] = set()
        self._sizes: dict[tuple[str, int], dict[int, int]] = {}
        self._offsets: dict[tuple[str, int, bytes], int] = {}

    def took(self, log: Any, data: bytes, headers: Sequence[BatchHeader]) -> None:
        """A log has appended these batches. The same offset of the same epoch is the same batch in all logs."""
        if log.topic not in self._topics:
            return
        place = (uuid_text(log.topic_id), log.partition)
        position = 0
        for header in headers:
            self._note(place, data, position, header)
            position += header.size_in_bytes

    def _note(
        self, where: tuple[str, int], data: bytes, position: int, header: BatchHeader
    ) -> None:
        known = self._checksums.setdefault(
            ((*where, header.base_offset), header.leader_epoch), header.crc
        )
        assert known == header.crc, (
            f"{where} at {header.base_offset}: two batches of epoch {header.leader_epoch}"
        )
        self._sizes.setdefault(where, {})[header.base_offset] = header.size_in_bytes
        first = (*where, header.base_offset)
        if header.leader_epoch in self._rows.get(first, ()):
            return
        framing = (
            header.base_offset,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )
        for record in read_records(memoryview(data), position, header):
            at = (*where, record.offset)
            row = (
                None
                if header.is_control
                else ModelRow(header.leader_epoch, Content.of(record), framing)
            )
            self._rows.setdefault(at, {})[header.leader_epoch] = row
            if header.is_transactional:
                self._transactional.add((at, header.leader_epoch))
            if row is not None and row.content.value is not None:
                self._offsets[(*where, row.content.value)] = record.offset

    # -- what others have ---------------------------------------------------------------------------

    def check(self, place: Place, row: ModelRow, where: str) -> None:
        """A table's row is what a leader of that epoch has appended there, and what a producer has sent."""
        epochs = self._rows.get(place, {})
        written = epochs.get(row.epoch)
        assert written == row, f"{where}: {place} is {row}, and logs had {epochs}"
        self._check_sent(place, row.content)

    def check_read(self, place: Place, record: Record, header: BatchHeader) -> None:
        """The same for a record that a consumer got."""
        epochs = self._rows.get(place, {})
        written = epochs.get(header.leader_epoch)
        content = Content.of(record)
        assert written is not None and written.content == content, (
            f"{place} was read as {content} of epoch {header.leader_epoch}, and logs had {epochs}"
        )
        self._check_sent(place, content)

    def _check_sent(self, place: Place, content: Content) -> None:
        sent = self.history.sent.get(content.value or b"")
        assert sent == content, f"{place} is {content}, and its producer has sent {sent}"

    def check_log(self, where: tuple[str, int], data: bytes) -> list[tuple[int, int, int]]:
        """First offset, last offset and leader epoch of each batch in a segment's bytes."""
        found = []
        for _, header in iterate_headers(memoryview(data)):
            place = ((*where, header.base_offset), header.leader_epoch)
            assert self._checksums.get(place) == header.crc, f"{place}: no log has taken this batch"
            last = header.base_offset + header.last_offset_delta
            found.append((header.base_offset, last, header.leader_epoch))
        return found

    def may_be_missing(self, place: Place) -> bool:
        """Whether a table may have no row at an offset: a marker, or a record of a transaction."""
        epochs = self._rows.get(place, {})
        return any(
            row is None or (place, epoch) in self._transactional for epoch, row in epochs.items()
        )

    def offset_of(self, where: tuple[str, int], value: bytes) -> int | None:
        """Where a log last appended this value."""
        return self._offsets.get((*where, value))

    def bytes_from(self, where: tuple[str, int], offset: int) -> int:
        """The bytes of all batches from an offset on, including batches that were truncated and not replaced."""
        return sum(size for base, size in self._sizes.get(where, {}).items() if base >= offset)


def rows_of(rows: Iterable[dict[str, Any]]) -> list[tuple[int, ModelRow]]:
    """A table's rows, by offset."""
    found = []
    for row in rows:
        moment, framing = row["timestamp"], row["batch"]
        timestamp_ms = row["timestamp_ms"] if moment is None else round(moment.timestamp() * 1000)
        content = Content(row["key"], row["value"], _headers_of(row), timestamp_ms)
        batch = (
            framing["base_offset"],
            framing["producer_id"],
            framing["producer_epoch"],
            framing["base_sequence"],
        )
        found.append((row["offset"], ModelRow(row["leader_epoch"], content, batch)))
    return sorted(found)


COLUMNS = [
    "offset",
    "leader_epoch",
    "timestamp",
    "timestamp_ms",
    "key",
    "value",
    "headers",
    "headers_raw",
    "batch",
]


def _headers_of(row: dict[str, Any]) -> Headers:
    raw = row["headers_raw"]
    if raw is None:
        return tuple((each["key"].encode(), each["value"]) for each in row["headers"] or ())
    assert row["headers"] is None
    # Producers here send one such header, with a key of two bytes.
    key, value = raw[2:4], raw[4:]
    size = varint(len(value) - 1)
    assert raw[:2] == varint(1) + varint(2) and value.startswith(size), raw
    return ((key, value[len(size) :]),)


def kept(
    history: History, model: HistoryModel, ids: dict[str, str], starts: dict[Partition, int]
) -> History:
    """The promises for records at or above their partition's start."""
    found = History(outcomes=history.outcomes, trouble=history.trouble, ordered=history.ordered)
    for promise in history.promises:
        topic, index = promise.partition
        start, where = starts[promise.partition], (ids[topic], index)
        offset = promise.offset
        gone = 0
        for i, value in enumerate(promise.values):
            at = offset + i if offset is not None and offset >= 0 else model.offset_of(where, value)
            gone += at is not None and at < start
        left = type(promise)(promise.values[gone:], promise.partition, offset, promise.transaction)
        if offset is not None and offset >= 0:
            left.offset = offset + gone
        found.promises.append(left)
    return found


def segments_of(world: World, node_id: int, partition: Partition) -> list[bytes]:
    """The segments of a partition on a host's disk."""
    folder = f"/{partition[0]}-{partition[1]}/"
    disk = world.hosts[node_id - 1].disk
    names = [path for path in disk.paths() if folder in path and path.endswith(".log")]
    return [bytes(disk.contents(name)) for name in sorted(names)]


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)
