"""Where a tiered partition begins by its retention, and what lies wholly before that."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kafka_ds.ipc.codec import decode, encode
from kafka_ds.topic.expiration import (
    ExpirationReason,
    HeldRange,
    LastRetentionCheck,
    ResidueFile,
    Retention,
    decide,
    horizon,
    is_of_this_history,
    residue_to_drop,
)

NOW_MS = 1_000_000
KEEP_ALL = Retention(
    now_ms=NOW_MS,
    retention_ms=-1,
    retention_bytes=-1,
    log_start_offset=0,
    limit_offset=10**9,
    local_bytes=0,
)


def held(
    count: int, *, size: int = 100, newest: int = 0, step: int = 1000, ours: bool = True
) -> list[HeldRange]:
    """Ranges of ten offsets each, each `step` ms younger than the one before."""
    return [
        HeldRange(
            start_offset=number * 10,
            end_offset=number * 10 + 9,
            size_bytes=size,
            newest_ms=newest + number * step,
            is_ours=ours,
        )
        for number in range(count)
    ]


def test_without_limits_all_stays() -> None:
    decision = decide(held(5), KEEP_ALL)
    assert (decision.log_start_offset, decision.expired, decision.kept) == (0, 0, 5)
    assert (decision.kept_bytes, decision.oldest_ms, decision.oldest_bytes) == (500, 0, 100)
    assert decision.reasons == frozenset()


def test_by_time_a_range_goes_with_its_newest_record() -> None:
    ranges = held(5, newest=NOW_MS - 4000)
    decision = decide(ranges, replace(KEEP_ALL, retention_ms=3000))
    assert (decision.log_start_offset, decision.expired) == (20, 2)
    assert decision.reasons == {ExpirationReason.TIME}
    assert decision.oldest_ms == NOW_MS - 2000
    assert decide(ranges, replace(KEEP_ALL, retention_ms=2999)).log_start_offset == 20
    assert decide(ranges, replace(KEEP_ALL, retention_ms=3001)).log_start_offset == 10


def test_a_retention_that_reaches_before_1970_keeps_all() -> None:
    ranges = held(3, newest=-1, step=0)
    decision = decide(ranges, replace(KEEP_ALL, retention_ms=NOW_MS + 1))
    assert decision.expired == 0
    assert decide(held(3, step=0), replace(KEEP_ALL, retention_ms=NOW_MS)).expired == 3


def test_the_first_that_stays_keeps_all_behind_it() -> None:
    young, *old = held(4)
    decision = decide(
        [replace(young, newest_ms=NOW_MS), *old], replace(KEEP_ALL, retention_ms=1000)
    )
    assert decision.log_start_offset == 0


def test_by_size_what_is_left_is_still_as_large_as_the_limit() -> None:
    by_size = replace(KEEP_ALL, retention_bytes=250)
    assert decide(held(5), by_size).log_start_offset == 20
    assert decide(held(5), by_size).reasons == {ExpirationReason.SIZE}
    assert decide(held(5), replace(by_size, retention_bytes=300)).log_start_offset == 20
    assert decide(held(5), replace(by_size, retention_bytes=301)).log_start_offset == 10
    assert decide(held(5), replace(by_size, retention_bytes=0)).log_start_offset == 50


def test_local_bytes_count_and_are_not_taken() -> None:
    by_size = replace(KEEP_ALL, retention_bytes=250, local_bytes=1000)
    decision = decide(held(5), by_size)
    assert (decision.log_start_offset, decision.kept, decision.oldest_ms) == (50, 0, None)


def test_time_makes_room_for_size() -> None:
    both = replace(KEEP_ALL, retention_ms=1000, retention_bytes=300)
    ranges = held(5, newest=NOW_MS - 2000)
    assert decide(ranges, both).log_start_offset == 20
    assert decide(ranges, both).reasons == {ExpirationReason.TIME}


def test_nothing_at_or_above_the_high_watermark_goes() -> None:
    for limit, start in ((0, 0), (9, 0), (10, 10), (19, 10), (20, 20)):
        limited = replace(KEEP_ALL, retention_bytes=0, limit_offset=limit)
        assert decide(held(5), limited).log_start_offset == start


def test_what_is_below_the_log_start_counts_no_more() -> None:
    by_size = replace(KEEP_ALL, retention_bytes=300, log_start_offset=25)
    decision = decide(held(5), by_size)
    assert (decision.log_start_offset, decision.kept) == (25, 3)
    assert decide(held(5), replace(by_size, retention_bytes=200)).log_start_offset == 30


def test_of_another_history_nothing_is_counted_and_nothing_waits_for_it() -> None:
    strange = replace(held(1)[0], is_ours=False, size_bytes=10**6)
    decision = decide([strange, *held(5)[1:]], replace(KEEP_ALL, retention_bytes=300))
    assert (decision.log_start_offset, decision.kept_bytes) == (20, 300)


def test_which_history_a_range_is_of() -> None:
    leader = [(1, 0), (3, 50)]
    assert is_of_this_history([(1, 10)], leader, 49)
    assert is_of_this_history([(1, 10), (3, 50)], leader, 60)
    assert not is_of_this_history([(2, 10)], leader, 49)
    assert not is_of_this_history([(1, 10)], leader, 60)
    # A leader that lost its disk knows the last epochs alone: that is no evidence.
    assert is_of_this_history([(1, 10)], [(3, 50)], 49)


@given(
    sizes=st.lists(st.integers(1, 50), max_size=20),
    times=st.lists(st.integers(0, 100), min_size=20, max_size=20),
    retention_ms=st.integers(-1, 120),
    retention_bytes=st.integers(-1, 600),
    local=st.integers(0, 100),
    start=st.integers(0, 200),
    limit=st.integers(0, 250),
)
def test_it_takes_what_must_go_and_no_more(
    sizes: list[int],
    times: list[int],
    retention_ms: int,
    retention_bytes: int,
    local: int,
    start: int,
    limit: int,
) -> None:
    ranges = [
        HeldRange(start_offset=i * 10, end_offset=i * 10 + 9, size_bytes=size, newest_ms=times[i])
        for i, size in enumerate(sizes)
    ]
    retention = Retention(
        now_ms=110,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        log_start_offset=start,
        limit_offset=max(limit, start),
        local_bytes=local,
    )
    decision = decide(ranges, retention)
    assert decision.log_start_offset >= start
    assert decision.log_start_offset == start or decision.log_start_offset <= max(limit, start)
    counted = [each for each in ranges if each.end_offset >= start]
    gone, left = counted[: decision.expired], counted[decision.expired :]
    assert decision.log_start_offset == (gone[-1].end_offset + 1 if gone else start)

    def is_old(each: HeldRange) -> bool:
        return 0 <= retention_ms <= 110 and each.newest_ms <= 110 - retention_ms

    def is_too_much(behind: list[HeldRange]) -> bool:
        rest = local + sum(each.size_bytes for each in behind)
        return retention_bytes >= 0 and rest >= retention_bytes

    for at, each in enumerate(gone):
        assert is_old(each) or is_too_much(counted[at + 1 :])
    if left and left[0].end_offset < retention.limit_offset:
        assert not is_old(left[0])
        assert not is_too_much(left[1:])
    # Said twice, it changes nothing.
    again = decide(ranges, replace(retention, log_start_offset=decision.log_start_offset))
    assert (again.log_start_offset, again.expired) == (decision.log_start_offset, 0)
    last_check = LastRetentionCheck(decision=decision, retention=retention, copied_offset=0)
    settled = replace(retention, log_start_offset=decision.log_start_offset)
    blocked = bool(left) and left[0].end_offset >= retention.limit_offset
    assert blocked or not last_check.is_due(settled, 0)


def test_a_decision_survives_the_way() -> None:
    decision = decide(held(5), replace(KEEP_ALL, retention_bytes=250))
    assert decode(encode(decision)[0]) == decision


def test_it_is_looked_again_when_there_is_a_reason() -> None:
    retention = replace(KEEP_ALL, retention_ms=10_000, retention_bytes=1_000)
    decision = decide(held(5, newest=NOW_MS), retention)
    last_check = LastRetentionCheck(decision=decision, retention=retention, copied_offset=49)
    assert not last_check.is_due(retention, 49)
    assert last_check.is_due(retention, 59)
    assert last_check.is_due(replace(retention, retention_ms=9_000), 49)
    assert last_check.is_due(replace(retention, retention_bytes=-1), 49)
    assert last_check.is_due(replace(retention, log_start_offset=5), 49)
    assert not last_check.is_due(replace(retention, now_ms=NOW_MS + 9_999), 49)
    assert last_check.is_due(replace(retention, now_ms=NOW_MS + 10_000), 49)
    assert not last_check.is_due(replace(retention, local_bytes=599), 49)
    assert last_check.is_due(replace(retention, local_bytes=600), 49)


def test_a_copy_is_no_reason_to_look_where_only_time_lets_records_go() -> None:
    retention = replace(KEEP_ALL, retention_ms=10_000)
    decision = decide(held(5, newest=NOW_MS), retention)
    last_check = LastRetentionCheck(decision=decision, retention=retention, copied_offset=49)
    assert not last_check.is_due(retention, 59)
    assert last_check.is_due(replace(retention, now_ms=NOW_MS + 10_000), 59)
    # Where nothing was kept, the age of what is copied first is not known.
    empty = LastRetentionCheck(
        decision=decide([], retention), retention=retention, copied_offset=49
    )
    assert not empty.is_due(retention, 49)
    assert empty.is_due(retention, 59)


def test_a_copy_that_crosses_the_log_start_is_a_reason_to_look() -> None:
    """It was in flight when DeleteRecords moved it: its rows may lie below."""
    retention = replace(KEEP_ALL, log_start_offset=50)
    last_check = LastRetentionCheck(
        decision=decide([], retention), retention=retention, copied_offset=9
    )
    assert not last_check.is_due(retention, 9)
    assert last_check.is_due(retention, 59)
    kept = decide(held(8), retention)
    after = LastRetentionCheck(decision=kept, retention=retention, copied_offset=59)
    assert not after.is_due(retention, 69)


def test_the_horizon_is_where_the_first_file_that_stays_begins() -> None:
    files = [(0, 9), (10, 29), (30, 39)]
    assert horizon(0, [], 40) == 0
    assert horizon(10, files, 40) == 10
    assert horizon(25, files, 40) == 10
    assert horizon(30, files, 40) == 30
    # Others may have laid it in another way.
    assert horizon(25, [*files, (5, 39)], 40) == 5
    # Deleted beyond what is in the lake.
    assert horizon(100, files, 40) == 40


def test_of_the_residue_the_last_that_knows_stays() -> None:
    files = [
        ResidueFile(path="a", end_offset=9, has_producers=True),
        ResidueFile(path="b", end_offset=19, has_producers=True),
        ResidueFile(path="b of a lost attempt", end_offset=19, has_producers=True),
        ResidueFile(path="c", end_offset=29, has_producers=False),
        ResidueFile(path="d", end_offset=39, has_producers=False),
        ResidueFile(path="e", end_offset=49, has_producers=True),
    ]
    assert residue_to_drop(files, 40) == ["a", "c"]
    assert residue_to_drop(files, 20) == ["a"]
    assert residue_to_drop(files, 50) == ["a", "b", "b of a lost attempt", "c", "d"]
    assert residue_to_drop(files, 5) == []
