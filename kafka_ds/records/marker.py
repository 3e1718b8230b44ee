"""Pure: the control batch that ends a transaction (KIP-98)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from kafka_ds.records.batch import (
    BatchHeader,
    ControlType,
    CorruptRecord,
    control_type,
    read_records,
)

_MARKER_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """The content of an end-of-transaction marker."""

    aborted: bool
    coordinator_epoch: int


def read_marker(batch: bytes | memoryview, header: BatchHeader) -> Marker:
    """The marker in a control batch; raises CorruptRecord if there is none."""
    records = read_records(batch, 0, header)
    if not records:
        raise CorruptRecord("a control batch without a record")
    kind = control_type(records[0])
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptRecord(f"unexpected control type {kind}")
    value = records[0].value
    if value is None or len(value) < _MARKER_VALUE.size:
        raise CorruptRecord("a marker without its coordinator epoch")
    return Marker(kind == ControlType.ABORT, _MARKER_VALUE.unpack_from(value)[1])
