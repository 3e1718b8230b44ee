"""What several tests use: hostile_payloads."""

from kafka_ds.records.batch import (
    HEADER_BYTES,
    Record,
    build_batch,
)

RECORDS = [
    Record(7, 1_700_000_000_000, b"key", b"value", ((b"h", b"1"), (b"h", None))),
    Record(8, 1_700_000_000_005, None, b""),
    Record(11, 1_699_999_999_990, b"", None, ((b"\xc3\xa4", b""),)),
]


def hostile_payloads() -> dict[str, bytes]:
    good = build_batch(RECORDS[1:2])[HEADER_BYTES:]
    assert good == b"\x0c\x00\x00\x00\x01\x00\x00"
    return {
        "nothing": b"",
        "cut": good[:-1],
        "left over": good + b"\0",
        "record length of zero": b"\x00" * 7,
        "negative record length": b"\x01" + good[1:],
        "record length past the end": b"\x0e" + good[1:],
        "record longer than its fields": b"\x0e" + good[1:] + b"\0",
        "varint of six bytes": b"\x8c\x80\x80\x80\x80\x00" + good[1:],
        "varlong of eleven bytes": b"\x20\x00" + b"\x80" * 10 + b"\x00\x00\x01\x00\x00",
        "negative offset delta": b"\x0c\x00\x00\x01\x01\x00\x00",
        "offset delta past the last": b"\x0c\x00\x00\x02\x01\x00\x00",
        "key length of -2": b"\x0c\x00\x00\x00\x03\x00\x00",
        "key length past the record": b"\x0c\x00\x00\x00\x06\x00\x00",
        "value length of -2": b"\x0c\x00\x00\x00\x01\x03\x00",
        "value length past the record": b"\x0c\x00\x00\x00\x01\x04\x00",
        "negative header count": b"\x0c\x00\x00\x00\x01\x00\x01",
        "header count past the record": b"\x0c\x00\x00\x00\x01\x00\x02",
        "null header key": b"\x10\x00\x00\x00\x01\x00\x02\x01\x01",
        "header value of -2": b"\x10\x00\x00\x00\x01\x00\x02\x00\x03",
        "header value past the record": b"\x10\x00\x00\x00\x01\x00\x02\x00\x02",
    }
