"""What the copy loop makes of the lake's answers, and of its quota."""

import asyncio
import errno
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.log.epochs import LeaderEpochs
from broker.log.values import EnrichedLogSegment
from broker.remote import remote_log_manager as tier_manager
from broker.remote.copies import CopyLoop
from broker.remote.copy_policy import CopyState
from broker.remote.metrics import COPIES_PAUSED, DATA_MISSING, OFFSETS_MISSING, TierMetrics
from broker.remote.partitions import TieredPartition
from broker.remote.quota import COPY_TIMES, RemoteQuota
from broker.remote.remote_log_manager import RemoteLogManager
from broker.worker.rpc import (
    UNBOUNDED,
    CopyAnswer,
    PartitionOutcome,
    ReadTieredState,
    TieredState,
    Unavailable,
)
from kafka_ds.ipc.child import WorkerFailed, WorkerLost
from kafka_ds.process.crash_points import CrashPoints
from kafka_ds.protocol.topic_partition import TopicIdPartition
from kafka_ds.segments.producers import Producers
from tests.fakes.clock import ManualClock
from tests.fakes.logs import ScriptedLog
from tests.fakes.network import Respondent
from tests.fakes.settings import log_settings, tier_settings
from tests.loops import until


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of pauses."""
    return [each.message for each in caplog.records if each.message.startswith("tiering of")]


def outcomes_of(answer: CopyAnswer, outcome: str, message: str) -> CopyAnswer:
    """The same partitions, of which nothing was copied."""
    partitions = [
        replace(each, outcome=outcome, highest_offset_in_remote_storage=-1, message=message)
        for each in answer.partitions
    ]
    return replace(answer, partitions=partitions)


def state_of(highest_offset_in_remote_storage: int, conflict: str = "") -> TieredState:
    return TieredState(
        highest_offset_in_remote_storage=highest_offset_in_remote_storage,
        log_start_offset=0,
        conflict=conflict,
    )


class CopiesAtOnce(Respondent):
    """A worker that has copied whatever it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[list[tuple[str, int, int]]] = []
        self.compressions: list[str] = []

    def answer(self, request: Any) -> Any:
        ranges = [each.segment for each in request.sources]
        self.copied.append([(each.topic, each.partition, each.start_offset) for each in ranges])
        self.compressions += {each.compression for each in request.sources}
        ends = {(each.topic_id, each.partition): each.end_offset for each in ranges}
        outcomes = [
            PartitionOutcome(
                topic_id=id_, partition=at, outcome="finished", highest_offset_in_remote_storage=end
            )
            for (id_, at), end in ends.items()
        ]
        return CopyAnswer(partitions=outcomes, milliseconds=1)

    @property
    def states_asked(self) -> int:
        return sum(isinstance(each, ReadTieredState) for each in self.asked)


class DiesOnce(CopiesAtOnce):
    """A worker that is lost while it copies for the first time."""

    def answer(self, request: Any) -> Any:
        if not self.copied:
            self.copied.append([])
            return WorkerLost("killed", 100)
        return super().answer(request)


class FailsOnce(CopiesAtOnce):
    """A worker whose store is unreachable for a moment, so that nothing of the first copy is finished."""

    def answer(self, request: Any) -> Any:
        answer = super().answer(request)
        return outcomes_of(answer, "failed", "away") if len(self.copied) == 1 else answer


class FindsThere(CopiesAtOnce):
    """A worker whose table has the first of the ranges already: an earlier try has copied it."""

    found = 0

    def answer(self, request: Any) -> Any:
        answer = super().answer(request)
        count = len(self.copied[-1]) - self.found
        return replace(answer, partitions=[replace(e, ranges=count) for e in answer.partitions])


class Refuses(CopiesAtOnce):
    """A worker whose table may not be written to, as long as `reason` says why."""

    reason = "version 7: delta.appendOnly=true"

    def answer(self, request: Any) -> Any:
        if isinstance(request, ReadTieredState):
            return [state_of(-1, self.reason) for _ in request.partitions]
        answer = super().answer(request)
        return outcomes_of(answer, "conflict", self.reason) if self.reason else answer


class Segment(EnrichedLogSegment):
    """A log's own."""

    def largest_timestamp(self) -> int:
        return self.max_timestamp_ms


def led_partition(topic: str, partition: int, segments: int, size_bytes: int) -> TieredPartition:
    """A partition of closed segments of ten records each, all stable."""
    views = [
        Segment(
            base_offset=10 * at,
            next_offset=10 * at + 10,
            size_bytes=size_bytes,
            path=f"{topic}-{partition}/{at}",
            producer_snapshot=b"",
            max_timestamp_ms=1_000 * at,
        )
        for at in range(segments)
    ]
    log: Any = ScriptedLog(
        TopicIdPartition(topic.ljust(16, "-").encode(), topic, partition),
        log_start_offset=0,
        local_log_start_offset=0,
        log_end_offset=10 * segments,
        size_bytes=size_bytes * segments,
        config=log_settings(remote_storage_enable=True),
        rolled_segments=lambda start=0, limit=None: [v for v in views if v.next_offset > start][
            :limit
        ],
        segments=SimpleNamespace(
            all=[*views, None], path_of=lambda file, offset: f"{topic}-{partition}/{offset}"
        ),
        aborted_transactions=lambda start, end: [],
        leader_epochs=LeaderEpochs([(0, 0)]),
        producers=Producers(),
    )
    tiered = TieredPartition(log=log, leader_epoch=0, last_stable_offset=lambda: 10 * segments)
    tiered.state.learnt(-1, 0)
    return tiered


class CopyDesk:
    """A copy loop over partitions, a clock that stands, and a worker that is always done."""

    def __init__(
        self,
        *partitions: TieredPartition,
        bytes_per_second: int = UNBOUNDED,
        now_ms: int = 10**12,
        worker: CopiesAtOnce | None = None,
        lag_ms: int = -1,
    ) -> None:
        self.clock, self.worker = ManualClock(now_ms), worker or CopiesAtOnce()
        self.rate = bytes_per_second
        self.quota = RemoteQuota(lambda: self.rate, COPY_TIMES, windows=11, window_seconds=1)
        asked: Any = self.worker
        self.loop = CopyLoop(
            tier_settings(lake_copy_bytes=1 << 20, lake_max_lag_ms=lag_ms),
            self.clock,
            asked,
            TierMetrics(),
            CrashPoints(),
            lambda tiered: None,
            self.quota,
        )
        for tiered in partitions:
            self.loop.open(tiered, 0)

    async def until(self, at_ms: int) -> None:
        """Let time pass, and the loop look whenever something is due."""
        end_ms = self.clock.ms + at_ms
        while self.clock.ms <= end_ms:
            while await self.loop.copy_once():
                pass
            self.clock.ms += 100


def test_partitions_of_a_topic_are_copied_together() -> None:
    """One request, and so one commit of the topic's table, for all that there is."""
    desk = CopyDesk(*(led_partition("t", at, 2, 1_000) for at in range(3)))
    asyncio.run(desk.until(0))
    assert [sorted(each) for each in desk.worker.copied] == [
        [("t", at, start) for at in range(3) for start in (0, 10)]
    ]


def test_a_topic_that_copies_no_more_is_left_alone_until_it_does_again() -> None:
    """remote.log.copy.disable (KIP-950)."""
    tiered = led_partition("t", 0, 3, 1_000)
    tiered.log.config = log_settings(remote_storage_enable=True, remote_log_copy_disable=True)
    desk = CopyDesk(tiered)
    asyncio.run(desk.until(1_000))
    assert desk.worker.copied == []
    tiered.log.config = log_settings(remote_storage_enable=True)
    desk.loop.look_at(tiered.key)
    asyncio.run(desk.until(0))
    assert sum(map(len, desk.worker.copied)) == 3


def test_what_is_copied_no_more_does_not_lag() -> None:
    manager = RemoteLogManager(tier_settings(), ManualClock())
    for at in range(2):
        tiered = led_partition("t", at, 3, 1_000)
        manager.copies.led[tiered.key] = tiered
    assert manager.lags() == {"t": (6_000, 6, 0)}
    tiered.log.config = log_settings(remote_storage_enable=True, remote_log_copy_disable=True)
    assert manager.lags() == {"t": (3_000, 3, 0)}


def test_rows_of_events_do_not_end_at_the_version_where_a_deletion_keeps_failing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was decided since is asked for with each further try, and not after the first that succeeds."""
    monkeypatch.setattr(tier_manager, "MATERIALISE_SECONDS", 0)
    settings = tier_settings(remote_log_manager_task_retry_backoff_ms=0)
    manager, asked = RemoteLogManager(settings, ManualClock()), list[int]()

    def fails(request: Any) -> Any:
        asked.append(request.version)
        if len(asked) >= 3:
            return request.version
        manager.cluster_events(request.version + 1)
        return WorkerFailed("unavailable", "deletions are still due")

    monkeypatch.setattr(manager.worker, "send", Respondent(fails).send)

    async def scenario() -> None:
        manager.cluster_events(7)
        await until(lambda: not manager.tasks)

    asyncio.run(scenario())
    assert asked == [7, 8, 9]


@pytest.mark.parametrize(("changes", "count"), [({}, 3), ({"remote_copy_lag_ms": 1_500}, 1)])
def test_what_is_too_young_is_held_back(changes: dict[str, int], count: int) -> None:
    """remote.copy.lag.* (KIP-1241); -1 is the local retention, which is without a limit by default."""
    tiered = led_partition("t", 0, 3, 1_000)
    tiered.log.config = log_settings(
        remote_storage_enable=True, **{"remote_copy_lag_bytes": -1 if changes else 0, **changes}
    )
    tiered.log.segments = SimpleNamespace(all=[])  # type: ignore[assignment]
    desk = CopyDesk(tiered, now_ms=1_500)
    asyncio.run(desk.until(0))
    assert sum(map(len, desk.worker.copied)) == count


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (UNBOUNDED, ["zstd", "zstd", *["snappy"] * 7, "zstd"]),
        # A quota decides how fast copies are: to hurry would gain nothing.
        (1 << 40, ["zstd"] * 10),
    ],
)
def test_copies_hurry_while_more_is_closed_than_they_take(rate: int, expected: list[str]) -> None:
    """A copy takes a MiB; during each of the first six half as much again is closed."""
    tiered = led_partition("t", 0, 0, 1 << 19)
    views: list[EnrichedLogSegment] = []
    tiered.log.rolled_segments = lambda start=0, limit=None: [  # type: ignore[method-assign]
        each for each in views if each.next_offset > start
    ]

    def close(count: int) -> None:
        more = led_partition("t", 0, len(views) + count, 1 << 19).log
        views[:] = more.rolled_segments()
        tiered.log.log_end_offset = more.log_end_offset  # type: ignore[misc]
        tiered.last_stable_offset = lambda: more.log_end_offset

    close(2)
    desk = CopyDesk(tiered, bytes_per_second=rate)
    desk.worker.meanwhile = lambda: close(3) if len(desk.worker.copied) < 6 else None
    asyncio.run(desk.until(100))
    assert (tiered.state.copied_offset, len(views)) == (199, 20)
    assert desk.worker.compressions == expected


@pytest.mark.parametrize("worker", [CopiesAtOnce, DiesOnce])
@pytest.mark.parametrize("has_lag", [False, True])
def test_a_long_backlog_alone_is_no_reason_to_hurry(
    worker: type[CopiesAtOnce], has_lag: bool
) -> None:
    """Of 200 segments 64 are looked at closely each time; each copy takes one, and nothing is produced."""
    tiered = led_partition("t", 0, 200, 1 << 20)
    if has_lag:
        tiered.log.config = replace(
            tiered.log.config, remote_copy_lag_ms=1, remote_copy_lag_bytes=-1
        )
        tiered.log.segments.all.pop()
        tiered.log.segments.all.append(led_partition("t", 0, 201, 1 << 20).log.segments.all[200])
    view, ranges = tiered.view(with_active=False, now_ms=10**12)
    assert (len(ranges), view.bytes_beyond) == (64, 136 << 20)
    tiered.last_stable_offset = lambda: 1_000
    assert tiered.view(with_active=False, now_ms=10**12)[0].bytes_beyond == 36 << 20
    tiered.last_stable_offset = lambda: 2_000
    desk = CopyDesk(tiered, worker=worker())
    asyncio.run(desk.until(1_000))
    assert tiered.state.copied_offset == 1_999
    assert desk.worker.compressions == ["zstd"] * 200


def test_copies_wait_for_their_quota_and_none_is_lost() -> None:
    """Ten segments of 1,000 bytes at 500 bytes per second: the copies take twenty seconds, without bursts."""
    tiered = led_partition("t", 0, 10, 1_000)
    desk = CopyDesk(tiered, bytes_per_second=500)
    asyncio.run(desk.until(4_000))
    assert 0 < len(desk.worker.copied) < 5
    assert all(len(each) == 1 for each in desk.worker.copied)
    assert all(value > 0 for _, _, value in desk.quota.samples(desk.clock.ms))
    asyncio.run(desk.until(30_000))
    assert [each for copy in desk.worker.copied for each in copy] == [
        ("t", 0, start) for start in range(0, 100, 10)
    ]
    assert tiered.state.copied_offset == 99


def test_a_quota_that_is_lifted_is_seen_within_a_second() -> None:
    desk = CopyDesk(led_partition("t", 0, 50, 1_000_000), bytes_per_second=10)
    asyncio.run(desk.until(1_000))
    assert sum(map(len, desk.worker.copied)) == 1
    desk.rate = UNBOUNDED
    asyncio.run(desk.until(1_100))
    assert sum(map(len, desk.worker.copied)) == 50


def with_active_segment(tiered: TieredPartition, size_bytes: int = 100) -> Any:
    """A log whose active segment can be read, and grows when the test moves its end."""
    log: Any = tiered.log
    log.size_bytes += 1_000
    log.read = lambda *_, **__: SimpleNamespace(
        slices=[SimpleNamespace(file=None, position=0, size_bytes=size_bytes)],
        size_bytes=size_bytes,
    )
    tiered.last_stable_offset = lambda: log.log_end_offset
    return log


def test_a_trickle_is_copied_twice_in_each_lag_and_not_record_by_record() -> None:
    """lake.max.lag.ms: records that come while a copy is under way wait for the next round."""
    tiered = led_partition("t", 0, 0, 1_000)
    log = with_active_segment(tiered)
    desk = CopyDesk(tiered, lag_ms=1_000)

    def append() -> None:
        log.log_end_offset += 1

    # Each copy finds a record more, and another comes every tenth of a second.
    desk.worker.meanwhile = lambda: append() if len(desk.worker.copied) < 200 else None
    behind: list[int] = []

    async def trickle() -> None:
        for _ in range(100):
            append()
            desk.loop.begin_round()
            await desk.until(0)
            behind.append(log.log_end_offset - 1 - tiered.state.copied_offset)

    asyncio.run(trickle())
    assert 15 <= len(desk.worker.copied) <= 25
    assert max(behind) <= 10


def test_a_trickle_into_a_diskless_topic_is_copied_now_and_then() -> None:
    """Without lake.max.lag.ms: its records must leave the write-ahead log some time."""
    diskless, other = led_partition("diskless", 0, 0, 1_000), led_partition("t", 0, 0, 1_000)
    diskless.log.config = log_settings(remote_storage_enable=True, lake_diskless=True)
    desk = CopyDesk(diskless, other)
    with_active_segment(other).log_end_offset = 10
    log = with_active_segment(diskless)

    async def trickle() -> None:
        for _ in range(100):  # Ten minutes.
            log.log_end_offset += 1
            desk.loop.begin_round()
            await desk.until(0)
            desk.clock.ms += 6_000

    asyncio.run(trickle())
    assert len(desk.worker.copied) == 5
    assert diskless.state.copied_offset >= log.log_end_offset - 21
    assert other.state.copied_offset == -1


@pytest.mark.parametrize("is_to_remain_so", [True, False])
def test_much_of_a_diskless_partition_is_copied_sooner(is_to_remain_so: bool) -> None:
    """Whoever leads next would have to put all of it again, also of one that is to have replicas again."""
    tiered = led_partition("diskless", 0, 0, 0)
    log = with_active_segment(tiered, size_bytes=8 << 20)
    log.config = log_settings(remote_storage_enable=True, lake_diskless=is_to_remain_so)
    tiered.has_wal = True
    desk = CopyDesk(tiered)

    async def stream() -> None:
        for _ in range(20):  # Ten minutes.
            log.log_end_offset += 1
            desk.loop.begin_round()
            await desk.until(0)
            desk.clock.ms += 30_000

    asyncio.run(stream())
    assert len(desk.worker.copied) == 20


def test_an_active_segment_is_copied_on_demand() -> None:
    tiered = led_partition("t", 0, 0, 0)
    with_active_segment(tiered).log_end_offset = 10
    desk = CopyDesk(tiered)

    async def copied() -> int:
        desk.loop.begin_round()
        await desk.until(0)
        return tiered.state.copied_offset

    assert asyncio.run(copied()) == -1
    desk.loop.copy_active(tiered.key)
    assert asyncio.run(copied()) == 9


def test_what_is_left_of_large_active_segments_is_copied_together() -> None:
    """Of each a little is new; the whole of one would fill a copy."""
    many = [led_partition("t", at, 0, 0) for at in range(3)]
    for tiered in many:
        log = with_active_segment(tiered)
        log.size_bytes, log.log_end_offset = 1 << 30, 10
    desk = CopyDesk(*many, lag_ms=5_000)
    desk.loop.begin_round()
    asyncio.run(desk.until(0))
    assert [len(each) for each in desk.worker.copied] == [3]


def test_a_round_of_hundreds_of_trickles_is_a_few_copies() -> None:
    """Each copy has commits of its own: on a store that takes its time they decide how long a round takes."""
    many = [led_partition(f"t{at // 100}", at % 100, 0, 0) for at in range(500)]
    for tiered in many:
        with_active_segment(tiered).log_end_offset = 10
    desk = CopyDesk(*many, lag_ms=5_000)
    desk.loop.begin_round()
    asyncio.run(desk.until(0))
    assert [len(each) for each in desk.worker.copied] == [128, 128, 128, 116]
    assert {tiered.state.copied_offset for tiered in many} == {9}


def test_a_backlog_leaves_others_room_in_each_copy() -> None:
    """Of 200 small segments of one partition, and a trickle in more partitions than one copy takes."""
    big = led_partition("big", 0, 200, 100)
    many = [led_partition("t", at, 0, 0) for at in range(130)]
    for tiered in many:
        with_active_segment(tiered).log_end_offset = 10
    desk = CopyDesk(big, *many, lag_ms=5_000)
    desk.loop.begin_round()
    asyncio.run(desk.until(0))
    first, second, *_ = desk.worker.copied
    assert len({(topic, partition) for topic, partition, _ in first}) == 128
    assert [place for place in second if place[0] == "t"] == [
        ("t", at, 0) for at in (127, 128, 129)
    ]
    assert big.state.copied_offset == 1_999


@pytest.mark.parametrize("is_first", [False, True])
def test_a_trickle_keeps_its_lag_beside_a_backlog(is_first: bool) -> None:
    """A segment of the backlog fills a copy; each copy takes a fifth of the lag, and two records come meanwhile."""
    big, small = led_partition("big", 0, 100, 1 << 20), led_partition("small", 0, 0, 0)
    log = with_active_segment(small)
    desk = CopyDesk(*((small, big) if is_first else (big, small)), lag_ms=1_000)
    behind: list[int] = []

    def meanwhile() -> None:
        desk.clock.ms += 200
        log.log_end_offset += 2
        behind.append(log.log_end_offset - 1 - small.state.copied_offset)
        if big.state.copied_offset == 999:
            desk.loop.stop()

    desk.worker.meanwhile = meanwhile
    asyncio.run(asyncio.wait_for(desk.loop.run(), 60))
    assert len(behind) > 100
    assert max(behind) <= 10


def test_records_of_the_active_segment_go_with_the_next_try_where_a_copy_failed() -> None:
    tiered = led_partition("t", 0, 0, 0)
    log = with_active_segment(tiered)
    desk = CopyDesk(tiered, worker=FailsOnce(), lag_ms=60_000)
    log.log_end_offset = 10
    desk.loop.begin_round()
    asyncio.run(desk.until(10_000))
    assert (len(desk.worker.copied), tiered.state.copied_offset) == (2, 9)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a bad sector"), ValueError("of ours")])
@pytest.mark.parametrize("what", ["rolled_segments", "aborted_transactions"])
def test_a_log_that_cannot_be_read_keeps_no_other_from_being_copied(
    what: str, error: Exception
) -> None:
    # Large: the one that comes first leaves the other no room in its copy.
    bad, good = led_partition("bad", 0, 2, 1 << 20), led_partition("good", 0, 2, 1 << 20)
    log: Any = bad.log
    reads: list[int] = []

    def fail(*_: object) -> Any:
        reads.append(1)
        raise error

    able = getattr(log, what)
    setattr(log, what, fail)
    desk = CopyDesk(bad, good)
    asyncio.run(desk.until(50))
    assert (bad.state.copied_offset, good.state.copied_offset) == (-1, 19)
    assert len(reads) == 1, "it waits for its next try"
    setattr(log, what, able)
    asyncio.run(desk.until(10_000))
    assert bad.state.copied_offset == 19


def test_a_pause_ends_once_what_was_in_the_way_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again and again, with back-off; only where it begins, changes and ends it is said."""
    caplog.set_level("INFO")
    worker = Refuses()
    tiered = led_partition("t", 0, 2, 1_000)
    desk = CopyDesk(tiered, led_partition("t", 1, 0, 0), worker=worker)
    asyncio.run(desk.until(60_000))
    assert (tiered.state.copied_offset, tiered.state.is_paused) == (-1, True)
    assert 4 <= worker.states_asked <= 10
    assert len(worker.copied) == 1, (
        "what is asked takes no room in copies, and nothing of their quota"
    )
    # As the next tries put it, which need no version to find that out.
    worker.reason = "delta.appendOnly=true"
    asyncio.run(desk.until(60_000))
    worker.reason = "CHECK constraint small"
    asyncio.run(desk.until(60_000))
    worker.reason = ""
    asyncio.run(desk.until(60_000))
    assert (tiered.state.copied_offset, tiered.state.is_paused) == (19, False)
    assert said(caplog) == [
        "tiering of t-0 is paused: version 7: delta.appendOnly=true",
        "tiering of t-0 is paused: CHECK constraint small",
        "tiering of t-0 is resumed",
    ]


def test_what_is_paused_is_counted() -> None:
    tiered, other = led_partition("t", 0, 2, 1_000), led_partition("u", 0, 2, 1_000)
    manager = RemoteLogManager(tier_settings(), ManualClock())
    for each in (tiered, other):
        manager.copies.led[each.key] = each

    def paused() -> dict[tuple[str, ...], Any]:
        return {labels: v for metric, labels, v in manager.samples() if metric is COPIES_PAUSED}

    assert paused() == {(): 0, ("t",): 0, ("u",): 0}
    tiered.state.pause("delta.appendOnly=true", 0)
    assert paused() == {(): 1, ("t",): 1, ("u",): 0}
    tiered.log.config = log_settings(remote_storage_enable=True, remote_log_copy_disable=True)
    assert paused() == {(): 0, ("u",): 0}


def test_what_the_store_lacks_is_counted() -> None:
    tiered = led_partition("t", 0, 2, 1_000)
    manager = RemoteLogManager(tier_settings(), ManualClock())
    manager.copies.led[tiered.key] = tiered
    tiered.state.missing = [(5, 9)]
    found = {(metric, labels): value for metric, labels, value in manager.samples()}
    assert found[DATA_MISSING, ("t",)] == found[DATA_MISSING, ()] == 1
    assert found[OFFSETS_MISSING, ("t",)] == found[OFFSETS_MISSING, ()] == 5


@pytest.mark.parametrize("is_open", [False, True], ids=["expired", "in an open transaction"])
def test_a_pause_ends_where_nothing_is_left_to_copy(is_open: bool) -> None:
    worker = Refuses()
    tiered = led_partition("t", 0, 2, 1_000)
    desk = CopyDesk(tiered, worker=worker)
    asyncio.run(desk.until(1_000))
    assert tiered.state.is_paused
    if is_open:
        tiered.last_stable_offset = lambda: 5
    else:
        tiered.log.rolled_segments = lambda start=0, limit=None: []  # type: ignore[method-assign]
    asyncio.run(desk.until(60_000))
    assert tiered.state.is_paused
    worker.reason = ""
    asyncio.run(desk.until(60_000))
    assert tiered.state.allows_upkeep


class Knows(CopiesAtOnce):
    """A worker that is asked for one partition's state."""

    def __init__(self, known: TieredState | Unavailable) -> None:
        super().__init__()
        self.known = known

    def answer(self, request: Any) -> Any:
        if not isinstance(request, ReadTieredState):
            return super().answer(request)
        return [self.known]


@pytest.mark.parametrize("found", [0, 1])
def test_what_an_earlier_try_has_copied_is_looked_for_before_it_goes(found: int) -> None:
    """Its answer was lost with its worker: this one has seen its own files alone."""
    tiered = led_partition("t", 0, 2, 1_000)
    worker = FindsThere()
    worker.found = found
    asyncio.run(CopyDesk(tiered, worker=worker).until(0))
    assert tiered.state.copied_offset == 19
    assert tiered.state.question(0, 0).is_whole is (found > 0)


def test_what_the_lake_has_is_committed_when_a_lead_begins() -> None:
    tiered = led_partition("t", 0, 2, 1_000)
    reached: list[int] = []
    tiered.state, tiered.lake_reaches = CopyState(), reached.append
    desk = CopyDesk(tiered, worker=Knows(state_of(9)))
    asyncio.run(desk.until(0))
    assert reached == [10]


def test_a_lake_that_goes_beyond_the_log_pauses_its_partition_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log grows, and its records have offsets of the lake's: by none of these may the others be let go."""
    tiered = led_partition("t", 0, 1, 1_000)
    tiered.state = CopyState()
    worker = Knows(state_of(10))
    desk = CopyDesk(tiered, worker=worker)
    asyncio.run(desk.until(60_000))
    tiered.log.log_end_offset = 50  # type: ignore[misc]
    desk.loop.begin_round()
    asyncio.run(desk.until(60_000))
    assert (worker.states_asked, worker.copied, tiered.state.copied_offset) == (1, [], -1)
    assert tiered.state.is_paused
    assert said(caplog) == ["tiering of t-0 is paused: the lake ends at 10, beyond the log"]
    manager = RemoteLogManager(tier_settings(), ManualClock())
    manager.copies.led[tiered.key] = tiered
    assert manager.highest_offset_in_remote_storage(*tiered.key) is None, (
        "ListOffsets asks the lake"
    )


def test_a_table_that_cannot_be_read_pauses_its_partitions_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    tiered = led_partition("t", 0, 2, 1_000)
    tiered.state = CopyState()
    error = "x.parquet has a deletion vector"
    worker = Knows(Unavailable(message=error, outcome="conflict"))
    desk = CopyDesk(tiered, worker=worker)
    asyncio.run(desk.until(60_000))
    assert (tiered.state.is_paused, worker.copied) == (True, [])
    assert worker.states_asked > 4
    worker.known = state_of(9)
    asyncio.run(desk.until(60_000))
    assert (tiered.state.is_paused, tiered.state.copied_offset) == (False, 19)
    assert said(caplog) == [f"tiering of t-0 is paused: {error}", "tiering of t-0 is resumed"]
