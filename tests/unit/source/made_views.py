"""What several tests use: lakes, views, view, file."""

from __future__ import annotations

from hypothesis import strategies as st

from kafka_ds.source.filters.intervals import Intervals
from kafka_ds.source.plan.scan_plan import (
    LakeFile,
    LakeView,
    PartitionView,
)

END = 60


@st.composite
def lakes(draw: st.DrawFn) -> LakeView:
    """A table with files that may overlap, and with holes between them."""
    start = draw(st.integers(0, END))
    end = draw(st.integers(start, END))
    files = []
    for number in range(draw(st.integers(0, 5))):
        first = draw(st.integers(0, END - 1))
        last = draw(st.integers(first, END - 1))
        files.append(
            LakeFile(
                path=f"f{number}",
                size_bytes=draw(st.integers(1, 4000)),
                first_offset=first,
                last_offset=last,
            )
        )
    spans = draw(st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=2))
    missing = Intervals.of(*spans)
    return LakeView(version=3, start=start, end=end, files=tuple(files), missing=missing)


@st.composite
def views(draw: st.DrawFn, partition: int = 0) -> PartitionView:
    log_start = draw(st.integers(0, END))
    return PartitionView(
        topic="t",
        partition=partition,
        topic_id=bytes(16),
        start=draw(st.integers(0, END)),
        end=draw(st.integers(0, END)),
        log_start=log_start,
        log_end=draw(st.integers(log_start, END)),
        leader_epoch=7,
        lake=draw(st.none() | lakes()),
    )


def view(**changes: object) -> PartitionView:
    values: dict[str, object] = {
        "topic": "t", "partition": 0, "topic_id": bytes(16), "start": 0, "end": 1000, "log_start": 0,
        "log_end": 1000, "leader_epoch": 7, **changes,
    }  # fmt: skip
    return PartitionView(**values)  # type: ignore[arg-type]


def file(first: int, last: int, **changes: object) -> LakeFile:
    values: dict[str, object] = {
        "path": f"{first}.parquet", "size_bytes": 100, "first_offset": first, "last_offset": last, **changes,
    }  # fmt: skip
    return LakeFile(**values)  # type: ignore[arg-type]
