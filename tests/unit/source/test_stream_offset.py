"""A stream's offsets: checkpoints, the size of micro-batches, and changes that a stream notices."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ds.errors import BadOffset
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.source.stream_offset import (
    Position,
    StreamOffset,
    limited,
    micro_batch_range,
    offsets_behind_latest,
    waiting_offsets,
)

ID, OTHER_ID = b"i" * 16, b"o" * 16
counts = st.dictionaries(st.integers(0, 5), st.integers(0, 1000), min_size=1)


def at(offsets: dict[int, int], topic_id: bytes = ID, epoch: int = 3) -> StreamOffset:
    return StreamOffset(
        topic_ids={"t": topic_id},
        positions={
            TopicPartition("t", p): Position(offset=n, epoch=epoch) for p, n in offsets.items()
        },
    )


@given(counts)
def test_an_offset_survives_the_checkpoint(offsets: dict[int, int]) -> None:
    document = json.loads(json.dumps(at(offsets).document()))
    assert StreamOffset.parse(document) == at(offsets)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"t": {"0": "5"}},
        {"t": {"0": True}},
        {"t": {"zero": 5}},
        {"version": 2, "topics": {}},
        {"version": 1},
        {"version": 1, "topics": {"t": {"id": "short", "partitions": {}}}},
        {"version": 1, "topics": {"t": {"id": "AAAAAAAAAAAAAAAAAAAAAA", "partitions": {"0": 5}}}},
        {"version": 1, "topics": []},
    ],
)
def test_an_offset_that_is_not_ours_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(BadOffset, match="checkpoint"):
        StreamOffset.parse(document)


def test_an_offset_of_version_0_1_0_is_read_and_written_as_it_was() -> None:
    """As a checkpoint holds it; what later versions add is passed over."""
    text = (
        '{"version": 1, "topics": {"t": {"id": "aWlpaWlpaWlpaWlpaWlpaQ", "partitions": '
        '{"0": {"offset": 5, "epoch": 3}, "1": {"offset": 7, "epoch": 3}}}}}'
    )
    assert StreamOffset.parse(json.loads(text)) == at({0: 5, 1: 7})
    assert json.dumps(at({0: 5, 1: 7}).document()) == text
    more = json.loads(text.replace('"epoch": 3', '"epoch": 3, "later": [1]'))
    assert StreamOffset.parse({**more, "written_by": "1.2.3"}) == at({0: 5, 1: 7})


def test_a_stream_goes_on_where_sparks_kafka_source_was() -> None:
    sparks = StreamOffset.parse({"t": {"0": 5, "1": 7}, "version": {"0": 1}})
    assert sparks.positions["version", 0] == Position(offset=1)
    start = StreamOffset.parse({"t": {"0": 5, "1": 7}})
    found = micro_batch_range(start, at({0: 9, 1: 7}), {})
    assert (found.ranges, found.problems) == ({("t", 0): (5, 9), ("t", 1): (7, 7)}, ())


def test_how_far_a_stream_lags() -> None:
    ends = {
        "endOffset": at({0: 5, 1: 7}).document(),
        "latestOffset": at({0: 9, 1: 7, 2: 8}).document(),
    }
    assert offsets_behind_latest(ends) == {
        "minOffsetsBehindLatest": 0.0,
        "maxOffsetsBehindLatest": 8.0,
        "avgOffsetsBehindLatest": 4.0,
        "offsetsBehindLatest": 12.0,
    }
    texts = {name: json.dumps(each) for name, each in ends.items()}
    assert offsets_behind_latest(texts) == offsets_behind_latest(ends)
    assert offsets_behind_latest({"endOffset": None})["offsetsBehindLatest"] == 0


@given(counts, counts, st.integers(1, 500))
def test_a_limit_is_kept_and_nothing_starves(
    begin: dict[int, int], more: dict[int, int], rows_max: int
) -> None:
    start = at(begin)
    latest = at({p: begin.get(p, 0) + n for p, n in more.items()})
    chosen = limited(start, latest, rows_max, {})
    taken = {
        tp: position.offset - (start.positions[tp].offset if tp in start.positions else 0)
        for tp, position in chosen.positions.items()
    }
    available = {("t", p): n for p, n in more.items()}
    assert all(0 <= taken[tp] <= available[tp] for tp in taken)
    assert all(taken[tp] for tp in taken if available[tp])
    assert sum(taken.values()) <= max(rows_max, sum(1 for n in available.values() if n)) + len(
        taken
    )
    if sum(available.values()) <= rows_max:
        assert chosen == latest
    assert waiting_offsets(start, latest) == sum(available.values())


def test_a_limit_counts_a_new_partition_from_where_it_begins() -> None:
    chosen = limited(at({}), at({0: 1000}), 10, {("t", 0): 900})
    assert chosen.positions["t", 0].offset == 910


def test_a_limit_counts_a_topic_that_was_made_anew_from_its_beginning() -> None:
    chosen = limited(at({0: 900}), at({0: 1000}, OTHER_ID), 10, {("t", 0): 0})
    assert chosen.positions["t", 0].offset == 10


def test_a_micro_batch_reads_from_offset_to_offset() -> None:
    found = micro_batch_range(at({0: 5, 1: 7}), at({0: 9, 1: 7, 2: 4}), {("t", 2): 0})
    assert found.ranges == {("t", 0): (5, 9), ("t", 1): (7, 7), ("t", 2): (0, 4)}
    assert found.problems == ()


@pytest.mark.parametrize(
    ("start", "end", "earliest", "problem", "ranges"),
    [
        (at({0: 5, 1: 5}), at({0: 6}), {}, "t-1 are gone", {("t", 0): (5, 6)}),
        (at({0: 5}), at({0: 3}), {}, "t-0 went back from 5 to 3", {}),
        (at({}), at({0: 9}), {("t", 0): 4}, "begins at 4 and not at 0", {("t", 0): (4, 9)}),
        (at({0: 5}), at({0: 8}, OTHER_ID), {}, "deleted and created again", {("t", 0): (0, 8)}),
    ],
)
def test_what_may_have_lost_rows_is_a_problem(
    start: StreamOffset,
    end: StreamOffset,
    earliest: dict[tuple[str, int], int],
    problem: str,
    ranges: dict[tuple[str, int], tuple[int, int]],
) -> None:
    found = micro_batch_range(start, end, earliest)
    assert len(found.problems) == 1
    assert problem in found.problems[0]
    assert found.ranges == ranges
