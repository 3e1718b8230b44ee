"""Incremental fetch sessions (KIP-227): creation, contents of answers, eviction."""

from itertools import count

import pytest

from broker.replica.serving.fetch_sessions import (
    EVICTION_MS,
    SHARD_IDS,
    SHARDS,
    FetchContext,
    FetchSession,
    FetchSessionCache,
)
from broker.replica.session_epochs import EPOCH_MAX, next_epoch
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import FetchRequest, FetchResponse
from kafka_ds.protocol.messages.data import (
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartition,
    FetchPartitionData,
)
from tests.requests import build

T0 = 10_000
IDS = bytes(range(16))


def cache(slots: int = 1000) -> FetchSessionCache:
    """Numbers of sessions are drawn in turns."""
    drawn = count()
    return FetchSessionCache(slots, lambda low, high: low + next(drawn) % (high - low))


def partition(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=100)


def asking(
    wanted: dict[str, list[FetchPartition]],
    *,
    session: tuple[int, int] = (0, 0),
    forgotten: dict[str, list[int]] | None = None,
) -> FetchRequest:
    return build(
        FetchRequest,
        max_wait_ms=0,
        min_bytes=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[{"topic": name, "partitions": parts} for name, parts in wanted.items()],
        forgotten_topics_data=[
            {"topic": name, "partitions": gone} for name, gone in (forgotten or {}).items()
        ],
    )


def begin(
    sessions: FetchSessionCache,
    request: FetchRequest,
    *,
    by_id: bool = False,
    follower: bool = False,
    now_ms: int = T0,
) -> FetchContext:
    return sessions.begin(
        request, has_topic_ids=by_id, replica_id=2 if follower else -1, now_ms=now_ms
    )


def data(index: int, high: int = 5, records: bytes = b"", **fields: object) -> FetchPartitionData:
    return FetchPartitionData(
        partition_index=index,
        high_watermark=high,
        log_start_offset=0,
        records=[records] if records else b"",
        **fields,
    )


def answer(
    context: FetchContext, told: dict[tuple[str, int], FetchPartitionData], now_ms: int = T0
) -> FetchResponse:
    """The answer that the reader sees for all its partitions; those not given here are unchanged."""
    responses = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                told.get((topic.topic, each.partition), data(each.partition))
                for each in topic.partitions
            ],
        )
        for topic in context.topics
    ]
    return context.finish(FetchResponse(responses=responses), now_ms)


def opened(
    sessions: FetchSessionCache,
    size: int = 1,
    *,
    follower: bool = False,
    now_ms: int = T0,
    topic: str = "t",
) -> int:
    """The number of a new session of this many partitions, 0 where there was no room."""
    request = asking({topic: [partition(i) for i in range(size)]})
    context = begin(sessions, request, follower=follower, now_ms=now_ms)
    session_id: int = answer(context, {}, now_ms).session_id
    return session_id


def shown(response: FetchResponse) -> list[tuple[str, int]]:
    return [
        (topic.topic, each.partition_index)
        for topic in response.responses
        for each in topic.partitions
    ]


def wanted_of(context: FetchContext) -> list[tuple[str, int, int]]:
    return [
        (topic.topic, each.partition, each.fetch_offset)
        for topic in context.topics
        for each in topic.partitions
    ]


# -- the life of a session ------------------------------------------------------------------------


def test_a_full_fetch_opens_a_session_and_tells_everything() -> None:
    sessions = cache()
    context = begin(sessions, asking({"t": [partition(0), partition(1)], "u": [partition(0)]}))
    response = answer(context, {})
    assert response.session_id > 0
    assert shown(response) == [("t", 0), ("t", 1), ("u", 0)]
    assert (len(sessions), sessions.partition_count) == (1, 3)


def test_what_is_not_named_is_wanted_as_before() -> None:
    sessions = cache()
    first = begin(sessions, asking({"t": [partition(0), partition(1)]}))
    number = answer(first, {}).session_id
    second = begin(
        sessions,
        asking({"t": [partition(1, 7)], "u": [partition(3)]}, session=(number, 1)),
    )
    assert wanted_of(second) == [("t", 0, 0), ("t", 1, 7), ("u", 3, 0)]
    third = begin(sessions, asking({}, session=(number, 2), forgotten={"t": [0, 9], "x": [1]}))
    assert wanted_of(third) == [("t", 1, 7), ("u", 3, 0)]
    assert answer(third, {}).session_id == number


def test_an_epoch_that_is_not_the_next_one() -> None:
    sessions = cache()
    number = opened(sessions)
    for epoch in (2, 5):
        context = begin(sessions, asking({}, session=(number, epoch)))
        assert context.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert begin(sessions, asking({}, session=(number, 1))).error is ErrorCode.NONE
    context = begin(sessions, asking({}, session=(number, 1)))
    assert context.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_epochs_begin_again_with_one() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, EPOCH_MAX)] == [1, 2, 1]


@pytest.mark.parametrize("session_id", [77, 0, -4, SHARDS * SHARD_IDS, EPOCH_MAX])
def test_a_session_that_is_not_there(session_id: int) -> None:
    sessions = cache()
    context = begin(sessions, asking({}, session=(session_id, 1)))
    assert context.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert begin(sessions, asking({}, session=(session_id, -1))).error is ErrorCode.NONE


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_closes_the_session_that_it_names(epoch: int) -> None:
    sessions = cache()
    number = opened(sessions)
    context = begin(sessions, asking({"t": [partition(0)]}, session=(number, epoch)))
    response = answer(context, {})
    assert shown(response) == [("t", 0)]
    assert begin(sessions, asking({}, session=(number, 1))).error is not ErrorCode.NONE
    assert bool(response.session_id) == (epoch == 0)
    assert len(sessions) == (epoch == 0)


def test_a_session_without_partitions_is_closed() -> None:
    sessions = cache()
    number = opened(sessions)
    context = begin(sessions, asking({}, session=(number, 1), forgotten={"t": [0]}))
    response = answer(context, {})
    assert (response.session_id, response.error_code, len(sessions)) == (0, ErrorCode.NONE, 0)
    assert answer(begin(sessions, asking({})), {}).session_id == 0


def test_names_and_ids_do_not_mix() -> None:
    sessions = cache()
    number = opened(sessions)
    context = begin(sessions, asking({}, session=(number, 1)), by_id=True)
    assert context.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    request = build(
        FetchRequest,
        max_wait_ms=0,
        min_bytes=1,
        session_epoch=0,
        topics=[{"topic_id": IDS, "partitions": [partition(0)]}],
    )
    number = answer(begin(sessions, request, by_id=True), {}).session_id
    context = begin(sessions, asking({}, session=(number, 1)))
    assert context.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    context = begin(sessions, asking({}, session=(number, 1)), by_id=True)
    assert [topic.topic_id for topic in context.topics] == [IDS]


def test_an_answer_that_was_overtaken_in_its_session() -> None:
    sessions = cache()
    number = opened(sessions)
    slow = begin(sessions, asking({}, session=(number, 1)))
    begin(sessions, asking({}, session=(number, 2)))
    response = answer(slow, {})
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert response.responses == []


# -- what is news ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "is_news"),
    [
        (data(0), False),
        (data(0, records=b"r"), True),
        (data(0, high=6), True),
        (data(0, last_stable_offset=3), False),
        (data(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), True),
        (data(0, diverging_epoch=FetchEpochEndOffset(epoch=1, end_offset=3)), True),
        (data(0, preferred_read_replica=2), True),
    ],
)
def test_only_news_are_told(told: FetchPartitionData, is_news: bool) -> None:
    sessions = cache()
    context = begin(sessions, asking({"t": [partition(0), partition(1)]}))
    number = answer(context, {}).session_id
    context = begin(sessions, asking({}, session=(number, 1)))
    assert shown(answer(context, {("t", 0): told})) == [("t", 0)] * is_news


def test_a_log_start_that_moves_is_news_once() -> None:
    sessions = cache()
    number = opened(sessions)
    for epoch, news in ((1, True), (2, False)):
        moved = data(0)
        moved.log_start_offset = 3
        context = begin(sessions, asking({}, session=(number, epoch)))
        assert bool(shown(answer(context, {("t", 0): moved}))) is news


def test_after_an_error_the_reader_is_told_anew() -> None:
    sessions = cache()
    number = opened(sessions)
    failed = {("t", 0): data(0, high=-1, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)}
    told = []
    for epoch, of in ((1, failed), (2, {}), (3, {})):
        context = begin(sessions, asking({}, session=(number, epoch)))
        told.append(bool(shown(answer(context, of))))
    assert told == [True, True, False]


def test_a_follower_that_knows_less_than_it_was_told_is_told_anew() -> None:
    """Where it truncates it takes nothing else of the answer. Unheard, it would be answered at once, for ever."""
    sessions = cache()
    number = opened(sessions, follower=True)
    behind = FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=100, high_watermark=3)
    knows = FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=100, high_watermark=5)
    parted = {("t", 0): data(0, diverging_epoch=FetchEpochEndOffset(epoch=1, end_offset=3))}
    told = []
    for epoch, wanted, of in ((1, behind, parted), (2, behind, {}), (3, knows, {})):
        request = asking({"t": [wanted]}, session=(number, epoch))
        context = begin(sessions, request, follower=True)
        told.append(bool(shown(answer(context, of))))
    assert told == [True, True, False]


def test_who_has_got_records_goes_to_the_end_of_the_line() -> None:
    sessions = cache()
    context = begin(sessions, asking({"t": [partition(0), partition(1)], "u": [partition(0)]}))
    number = answer(context, {}).session_id
    context = begin(sessions, asking({}, session=(number, 1)))
    answer(context, {("t", 0): data(0, records=b"r")})
    context = begin(sessions, asking({}, session=(number, 2)))
    assert wanted_of(context) == [("t", 1, 0), ("u", 0, 0), ("t", 0, 0)]
    assert [topic.topic for topic in context.topics] == ["t", "u", "t"]


# -- room -----------------------------------------------------------------------------------------


def test_slots_are_divided_among_the_shards() -> None:
    sessions = cache(slots=10)
    numbers = [opened(sessions) for _ in range(16)]
    shards = [number // SHARD_IDS for number in numbers if number]
    assert shards == [*range(SHARDS), 0, 1]
    assert len(sessions) == 10
    assert opened(cache(slots=0)) == 0


def in_one_shard(
    sessions: FetchSessionCache, size: int, *, follower: bool = False, now_ms: int = T0
) -> int:
    """As `opened`, always in the first shard."""
    sessions.next_shard = 0
    return opened(sessions, size, follower=follower, now_ms=now_ms)


def is_there(sessions: FetchSessionCache, number: int) -> bool:
    session: FetchSession | None = sessions.get(number)
    return session is not None


def test_young_consumers_do_not_make_way_for_others() -> None:
    sessions = cache(slots=8)
    small = in_one_shard(sessions, 1)
    assert in_one_shard(sessions, 50, now_ms=T0 + EVICTION_MS) == 0
    assert is_there(sessions, small)
    assert sessions.evictions == 0


def test_one_that_nobody_has_used_for_long_makes_way_for_anybody() -> None:
    sessions = cache(slots=8)
    large = in_one_shard(sessions, 50, follower=True)
    assert in_one_shard(sessions, 1, now_ms=T0 + EVICTION_MS + 1)
    assert not is_there(sessions, large)
    assert sessions.evictions == 1


def used(sessions: FetchSessionCache, number: int, epoch: int, now_ms: int) -> None:
    assert begin(sessions, asking({}, session=(number, epoch)), now_ms=now_ms).error == 0


def test_an_old_one_makes_way_for_a_larger_one() -> None:
    sessions = cache(slots=8)
    number = in_one_shard(sessions, 2)
    late = T0 + EVICTION_MS + 1
    used(sessions, number, 1, late)
    assert in_one_shard(sessions, 1, now_ms=late) == 0
    assert in_one_shard(sessions, 3, now_ms=late)
    assert not is_there(sessions, number)


def test_a_follower_takes_the_place_of_a_consumer_and_never_the_other_way() -> None:
    sessions = cache(slots=8)
    consumer = in_one_shard(sessions, 50)
    follower = in_one_shard(sessions, 1, follower=True)
    assert follower
    assert not is_there(sessions, consumer)
    late = T0 + EVICTION_MS + 1
    used(sessions, follower, 1, late)
    assert in_one_shard(sessions, 50, now_ms=late) == 0
    assert in_one_shard(sessions, 1, follower=True, now_ms=T0 + 1) == 0
    assert in_one_shard(sessions, 2, follower=True, now_ms=late)


def test_of_several_the_least_worth_goes() -> None:
    sessions = cache(slots=3 * SHARDS)
    numbers = [in_one_shard(sessions, size) for size in (3, 1, 2)]
    assert in_one_shard(sessions, 1, follower=True)
    assert [is_there(sessions, number) for number in numbers] == [True, False, True]


def test_use_keeps_a_session() -> None:
    sessions = cache(slots=2 * SHARDS)
    first, second = in_one_shard(sessions, 1), in_one_shard(sessions, 1)
    used(sessions, first, 1, T0 + EVICTION_MS)
    assert in_one_shard(sessions, 1, now_ms=T0 + EVICTION_MS + 1)
    assert is_there(sessions, first)
    assert not is_there(sessions, second)
