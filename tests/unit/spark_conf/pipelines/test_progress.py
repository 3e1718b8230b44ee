from dataclasses import replace

import pytest

from kafka_ds.errors import KafkaDsError
from kafka_ds.topic.typed_steps import TableStep
from spark_conf.pipelines.progress import (
    BYTES_PER_STEP,
    OFFSETS_OF_FIRST_STEP,
    StepLimit,
    check_committed,
    first_missing,
    lost_offsets,
    missing_error,
    next_step,
    reset_step,
)

DONE = TableStep(number=4, topic_id="t", mode="append", start={0: 0, 1: 0}, end={0: 10, 1: 5})


def after(
    done: TableStep | None, begun: TableStep | None = None, limit: int = 100, **ends: int
) -> TableStep | None:
    told = {int(name[1:]): end for name, end in ends.items()}
    return next_step(
        done, begun, topic_id="t", mode="append", starts={0: 2}, ends=told, limit=limit
    )


def test_tables_of_a_topic_that_is_gone_begin_anew() -> None:
    """Also where it was deleted between the errors of a step and its rows."""
    begun = replace(DONE, number=5)
    again = TableStep(number=5, topic_id="new", mode="append", start={}, end={})
    assert reset_step(DONE, begun, topic_id="t", mode="append") is None
    assert reset_step(None, None, topic_id="t", mode="append") is None
    assert reset_step(DONE, None, topic_id="new", mode="current") == again
    assert reset_step(DONE, begun, topic_id="new", mode="append") == replace(again, number=6)
    assert reset_step(None, replace(DONE, number=1), topic_id="new", mode="current") == replace(
        again, number=2, mode="current"
    )
    # It died between the two tables.
    half = replace(again, number=6)
    assert reset_step(DONE, half, topic_id="new", mode="append") == replace(again, number=7)


def test_lost_offsets_are_reported() -> None:
    """Also if a step was begun before: it starts where the last one ended, whatever retention did since."""
    starts = {0: 14, 1: 5}
    assert list(lost_offsets(DONE, starts, {0: 20, 1: 3})) == [
        "0: offsets 10 to 13 were deleted before the table had them",
        "1: ends at offset 3, but the table has offsets up to 4: records that replace lost ones "
        "below offset 5 will not be in the table",
    ]
    assert not list(lost_offsets(None, starts, {0: 20, 1: 3}))


def test_a_step_ends_where_the_first_missing_offset_is() -> None:
    missing = {0: [(0, 3), (14, 15), (8, 11)], 1: [(9, 9)], 2: [(0, 5)]}
    found = first_missing(DONE.end, {0: 20, 1: 9, 2: 5}, missing)
    assert found == {0: (10, 11), 2: (0, 4)}
    assert "removed offsets 10 to 11 of partition 0, 0 to 4 of partition 2" in str(
        missing_error(found)
    )
    assert first_missing(DONE.end, {0: 10, 1: 5}, missing) == {}


def test_a_first_step_begins_at_the_log_start() -> None:
    assert after(None, p0=7, p1=3) == TableStep(
        number=1, topic_id="t", mode="append", start={0: 2, 1: 0}, end={0: 7, 1: 3}
    )


def test_a_step_goes_on_where_the_last_one_ended_and_has_a_limit() -> None:
    step = after(DONE, p0=30, p1=5, p2=100, limit=20)
    assert step == TableStep(
        number=5, topic_id="t", mode="append", start={0: 10, 1: 5, 2: 0}, end={0: 20, 1: 5, 2: 10}
    )
    assert step.offsets == 20


def test_nothing_new_is_no_step() -> None:
    assert after(DONE, p0=10, p1=5) is None
    assert after(DONE, p0=3, p1=5) is None


def test_a_table_comes_past_what_retention_took_also_if_nothing_is_left() -> None:
    done = replace(DONE, end={0: 1, 1: 5})
    assert after(done, p0=2, p1=5) == replace(done, number=5, start={0: 2, 1: 5}, end={0: 2, 1: 5})
    assert after(replace(DONE, end={0: 2, 1: 5}), p0=2, p1=5) is None


def test_of_a_step_that_was_begun_no_offset_is_passed_over() -> None:
    begun = TableStep(number=5, topic_id="t", mode="append", start=DONE.end, end={0: 11, 1: 5})
    assert after(DONE, begun, p0=30, p1=5) == begun
    assert after(DONE, begun, p0=10, p1=5) is None, "what a RESTORE removed is waited for"
    large = replace(begun, end={0: 50, 1: 5})
    assert after(DONE, large, p0=90, p1=9, limit=20) == replace(large, end={0: 30, 1: 5})
    former = TableStep(number=5, topic_id="former", mode="append", start=DONE.end, end={0: 11})
    assert after(DONE, former, p0=30, p1=5) != former
    assert after(DONE, DONE, p0=10, p1=5) is None


def test_steps_grow_up_to_the_bytes_that_one_may_have() -> None:
    limit = StepLimit()
    limit.written(OFFSETS_OF_FIRST_STEP, 100 * OFFSETS_OF_FIRST_STEP)
    assert limit.offsets == 100 * OFFSETS_OF_FIRST_STEP
    limit.written(3, 300)
    assert limit.offsets == 100 * OFFSETS_OF_FIRST_STEP, "a short step does not make it smaller"
    limit.written(1_000, 1_000 * (BYTES_PER_STEP // 500))
    assert limit.offsets == 500
    limit.written(500, 2 * BYTES_PER_STEP)
    assert limit.offsets == 250
    limit.written(1, 2 * BYTES_PER_STEP)
    assert limit.offsets == 1
    limit.written(1, 0)
    assert limit.offsets == 100


def test_a_step_that_failed_is_tried_with_fewer_offsets() -> None:
    limit = StepLimit()
    for _ in range(3):
        limit.failed(OFFSETS_OF_FIRST_STEP)
    assert limit.offsets == OFFSETS_OF_FIRST_STEP // 1_000
    for _ in range(3):
        limit.failed(1_000)
    assert limit.offsets == 1
    limit.written(1_000_000, 1_000)
    limit.failed(0)
    limit.failed(1_000_000)
    assert limit.offsets == 100_000, "a tenth of what it had, not of what it might have had"


def test_a_step_that_left_no_commit_is_an_error_unless_another_driver_took_it() -> None:
    step = TableStep(number=2, topic_id="t", mode="append", start={0: 5}, end={0: 9})
    for last in (step, replace(step, end={0: 7}), replace(step, number=3)):
        check_committed(step, last)
    for nothing_new in (None, replace(step, number=1, end={0: 5})):
        with pytest.raises(
            KafkaDsError, match=r"step 2 was not committed, the last one is (none|1)$"
        ):
            check_committed(step, nothing_new)
