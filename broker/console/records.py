"""Shell: records for the console: a limited number of rows with truncated fields that say what is left out.

Batches are decompressed in pieces and only as far as shown, as a small batch may decompress to a very large one: a
page decompresses UNPACKED_BYTES_MAX and shows SHOWN_BYTES_MAX. A row says which offsets are left out. Bytes are shown
as text if they are UTF-8, else as hexadecimal, never as markup. As for a read_committed consumer, control batches and
aborted records are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from kafka_ds.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    CorruptRecord,
    TimestampType,
    iterate_headers,
    wrapped,
)
from kafka_ds.records.decompression import pieces

if TYPE_CHECKING:
    from kafka_ds.protocol.messages.data import FetchPartitionData

RECORDS_MAX = 500
FIELD_BYTES_MAX = 4 << 10
HEADERS_MAX = 16
HEADER_BYTES_MAX = 256
"""Of a header's name or value."""
SHOWN_BYTES_MAX = 1 << 20
UNPACKED_BYTES_MAX = 16 << 20
RECORD_BYTES_MIN = 64
"""Each record counts at least this much, as small ones take time, too."""

_LEFT_OUT = "left_out"

JsonRow: TypeAlias = dict[str, Any]
ShownField: TypeAlias = dict[str, Any] | None
PlacedBatch: TypeAlias = tuple[int, BatchHeader]


class RecordsPage:
    """Makes rows from the batches of a Fetch response."""

    def __init__(self, data: FetchPartitionData, offset: int) -> None:
        """`offset` is the requested one. Raises CorruptRecord."""
        from kafka_ds.client.fetch import aborted_ranges

        records = data.records
        if not isinstance(records, bytes | bytearray | memoryview):
            records = b"".join(records or ())
        self._records = memoryview(records)
        self._batches = list(iterate_headers(self._records))
        self._aborted = aborted_ranges(
            [header for _, header in self._batches],
            [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()],
        )
        self._offset = offset
        self._budget = _Budget()

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return self._batches[-1][1].next_offset if self._batches else self._offset

    def first_rows(self, limit: int) -> tuple[list[JsonRow], int]:
        """The first rows, and the offset to continue at."""
        rows: list[JsonRow] = []
        shown = 0
        for batch in self._batches:
            begins_page = self._budget.left == UNPACKED_BYTES_MAX
            for row in self._rows(batch):
                shown += _shown_bytes(row)
                is_full = bool(rows) and (len(rows) == limit or shown > SHOWN_BYTES_MAX)
                # The next page has a new budget.
                if is_full or (_LEFT_OUT in row and self._budget.left < 0 and not begins_page):
                    return rows, row["offset"]
                rows.append(row)
        return rows, self.next_offset

    def last_rows(self, limit: int) -> list[JsonRow]:
        """The last rows."""
        rows: list[JsonRow] = []
        shown = 0
        for batch in reversed(self._batches):
            found: deque[JsonRow] = deque()
            size = 0
            for row in self._rows(batch):
                found.append(row)
                size += _shown_bytes(row)
                while len(rows) + len(found) > limit or shown + size > SHOWN_BYTES_MAX:
                    if len(found) == 1:
                        break
                    size -= _shown_bytes(found.popleft())
            # Shown rows must be contiguous.
            if rows and (
                self._budget.left < 0 or len(rows) == limit or shown + size > SHOWN_BYTES_MAX
            ):
                break
            rows, shown = [*found, *rows], shown + size
        return rows

    def _rows(self, batch: PlacedBatch) -> Iterator[JsonRow]:
        """The rows of one batch; the last one may say what is left out."""
        position, header = batch
        offset = self._offset
        if header.is_control or any(
            producer == header.producer_id and first <= header.base_offset <= last
            for producer, first, last in self._aborted
        ):
            return
        payload = self._records[position + HEADER_BYTES : position + header.size_in_bytes]
        cursor = _PieceReader(self._pieces_of(header.codec, payload))
        reached = header.base_offset
        try:
            for _ in range(header.record_count):
                self._budget.spend(RECORD_BYTES_MIN)
                row = _row(cursor, header, reached, offset)
                reached = row["offset"] + 1
                if reached > offset:
                    yield row
        except _BudgetUsedUp:
            why = f"their batch decompresses to more than {UNPACKED_BYTES_MAX >> 20} MiB, the limit of a page"
        except CorruptRecord as error:
            why = f"their batch cannot be read: {error}"
        else:
            return
        first = max(reached, offset)
        yield {"offset": first, _LEFT_OUT: f"offsets {first} to {header.last_offset}: {why}"}

    def _pieces_of(self, codec: int, payload: memoryview) -> Iterator[memoryview]:
        if codec == Codec.NONE:
            yield payload
            return
        for piece in pieces(codec, payload, block_bytes_max=UNPACKED_BYTES_MAX):
            self._budget.spend(len(piece))
            yield memoryview(piece)


class _BudgetUsedUp(Exception):
    """The page's budget is used up."""


class _Budget:
    """The bytes that a page may still decompress."""

    def __init__(self) -> None:
        self.left = UNPACKED_BYTES_MAX

    def spend(self, size: int) -> None:
        """Raises _BudgetUsedUp."""
        self.left -= size
        if self.left < 0:
            raise _BudgetUsedUp


class _PieceReader:
    """A reader over consecutive pieces; keeps only the current one."""

    def __init__(self, source: Iterator[memoryview]) -> None:
        self._source = source
        self._piece = memoryview(b"")
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        return self._before + self._at

    def _next_piece(self) -> None:
        self._before += len(self._piece)
        self._at = 0
        found = next((piece for piece in self._source if piece), None)
        if found is None:
            raise CorruptRecord("truncated batch")
        self._piece = found

    def varint(self, bits: int) -> int:
        """Read a zigzag varint of up to `bits` bits; higher bits are dropped."""
        number = 0
        for shift in range(0, bits, 7):
            if self._at == len(self._piece):
                self._next_piece()
            byte = self._piece[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                number &= (1 << bits) - 1
                return number >> 1 ^ -(number & 1)
        raise CorruptRecord("a varint is too long")

    def read(self, count: int, kept_max: int = 0) -> bytes:
        """Read `count` bytes; returns the first `kept_max` of them."""
        if count < 0:
            raise CorruptRecord(f"length {count}")
        kept = bytearray()
        while count:
            if self._at == len(self._piece):
                self._next_piece()
            size = min(count, len(self._piece) - self._at)
            kept += self._piece[self._at : self._at + min(size, kept_max - len(kept))]
            self._at += size
            count -= size
        return bytes(kept)

    def field(self, kept_max: int) -> ShownField:
        """Read a length-prefixed field, truncated to `kept_max`."""
        length = self.varint(32)
        return None if length == -1 else field_of(self.read(length, kept_max), length)


def _row(cursor: _PieceReader, header: BatchHeader, reached: int, offset: int) -> JsonRow:
    """The next record; only its offset if that is below `offset`."""
    end = cursor.varint(32)
    end += cursor.position
    cursor.read(1)  # attributes, unused
    timestamp = wrapped(header.base_timestamp + cursor.varint(64))
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        timestamp = header.max_timestamp
    row: JsonRow = {"offset": header.base_offset + cursor.varint(32)}
    if not reached <= row["offset"] <= header.last_offset:
        raise CorruptRecord(f"offset {row['offset']} before {reached}")
    if row["offset"] >= offset:
        row |= {
            "timestamp": timestamp,
            "key": cursor.field(FIELD_BYTES_MAX),
            "value": cursor.field(FIELD_BYTES_MAX),
        }
        count = cursor.varint(32)
        row["headers"] = [
            {"name": cursor.field(HEADER_BYTES_MAX), "value": cursor.field(HEADER_BYTES_MAX)}
            for _ in range(min(count, HEADERS_MAX))
        ]
        row["headers_left_out"] = max(0, count - HEADERS_MAX)
    cursor.read(end - cursor.position)
    return row


def _shown_bytes(row: JsonRow) -> int:
    fields = [row.get("key"), row.get("value")]
    for header in row.get("headers", ()):
        fields += header.values()
    return sum(len(field["text"]) for field in fields if field is not None)


def field_of(shown: bytes, size: int) -> ShownField:
    """A field for the page: its first bytes as text or hexadecimal, and its size."""
    try:
        # The text may be truncated within a character.
        text = shown.decode("utf-8", "strict" if size == len(shown) else "ignore")
        is_hex = size != len(shown) and len(text.encode()) < len(shown) - 3
    except UnicodeDecodeError:
        text, is_hex = "", True
    return {"text": shown.hex() if is_hex else text, "hex": is_hex, "size": size}
