"""Shell: records as the console shows them: a limited number, each key and value cut to a limit.

Rules of this file: bytes become text where they are UTF-8, else hexadecimal; the page shows either as text and never as
markup. Control batches and records of aborted transactions are left out, as for a consumer with read_committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka_ds.records.batch import iterate_headers, read_records

if TYPE_CHECKING:
    from kafka_ds.protocol.messages.data import FetchPartitionData

RECORDS_MAX = 500
FIELD_BYTES_MAX = 4 << 10
BATCH_BYTES_MAX = 64 << 20


def rows_of(data: FetchPartitionData, offset: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    """At most `limit` records from `offset` on, and the offset after what was looked at."""
    from kafka_ds.client.fetch import aborted_ranges

    records = data.records
    if not isinstance(records, bytes | bytearray | memoryview):
        records = b"".join(records or ())
    batches = list(iterate_headers(records))
    aborted = aborted_ranges(
        [header for _, header in batches],
        [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()],
    )
    rows: list[dict[str, Any]] = []
    for position, header in batches:
        if header.last_offset < offset:
            continue
        left_out = header.is_control or any(
            producer == header.producer_id and first <= header.base_offset <= last
            for producer, first, last in aborted
        )
        if not left_out:
            for record in read_records(records, position, header, limit_bytes=BATCH_BYTES_MAX):
                if len(rows) == limit:
                    return rows, record.offset
                if record.offset >= offset:
                    rows.append(_row(record))
        offset = header.last_offset + 1
    return rows, offset


def _row(record: Any) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": field_of(record.key),
        "value": field_of(record.value),
        "headers": [[name.decode(errors="replace"), field_of(v)] for name, v in record.headers],
    }


def field_of(content: Any) -> dict[str, Any] | None:
    """Bytes in words: all of them or the first ones, how many there are, and whether they are hexadecimal."""
    if content is None:
        return None
    shown = bytes(content[:FIELD_BYTES_MAX])
    size = len(content)
    try:
        # What is cut off in the middle of a character is text, too.
        text = shown.decode("utf-8", "strict" if size == len(shown) else "ignore")
        is_hex = size != len(shown) and len(text.encode()) < len(shown) - 3
    except UnicodeDecodeError:
        text, is_hex = "", True
    return {"text": shown.hex() if is_hex else text, "hex": is_hex, "size": size}
