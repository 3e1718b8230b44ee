"""Winning versions: lost answers, unknown fates, paused writers, versions in between."""

import pytest

from kafka_ds.delta.actions import CorruptLog, kafka_ds_info
from kafka_ds.delta.commit import (
    Conflict,
    Contended,
    FateUnknown,
    FilesMayBeGone,
    NotCommitted,
    PlainChange,
    VersionsGone,
)
from kafka_ds.delta.log import RETRY_PAUSES_SECONDS, DeltaLog, ForeignTable, SystemLogClock
from kafka_ds.delta.names import commit_file
from kafka_ds.delta.store.store import NotWritten
from tests.fakes.store import ALWAYS, SCHEMA_JSON, MemoryStore, new_log

DAY_MS = 86_400_000


def commit(log, read_version, **info):
    return log.commit(log.begin(PlainChange("TEST", info=info)), read_version=read_version)


def test_versions_are_won_one_after_the_other(log):
    assert [commit(log, version) for version in range(5)] == [1, 2, 3, 4, 5]
    assert log.latest_version() == 5
    assert [version for version, _ in log.versions_after(2)] == [3, 4, 5]
    assert log.read_version(6) is None


def test_what_is_ours_rides_in_the_commit_info(log):
    commit(log, 0, events=[{"a": 1}])
    ours = kafka_ds_info(log.read_version(1))
    assert ours["events"] == [{"a": 1}]
    assert len(ours["commitId"]) == 32


def test_creating_twice_makes_one_table(store, clock):
    log = new_log(store, clock)
    again = DeltaLog(store, "table", clock=clock)
    assert not again.create(schema_json=SCHEMA_JSON, partition_columns=(), configuration={})
    assert log.latest_version() == again.latest_version() == 0


def test_losing_the_race_to_create_is_no_error(store, clock):
    log, other = (DeltaLog(store, "table", clock=clock) for _ in range(2))

    def create_first():
        assert other.create(schema_json=SCHEMA_JSON, partition_columns=(), configuration={})

    store.race(create_first)
    assert not log.create(schema_json=SCHEMA_JSON, partition_columns=(), configuration={})


def test_a_folder_with_other_files_is_not_taken(store, clock):
    store.put_durable("table/photo.jpg", b"x")
    with pytest.raises(ForeignTable, match="memory:/table holds files but is not a table"):
        new_log(store, clock)


def test_a_table_that_another_makes_in_the_midst_of_create_is_no_foreign_one(store, clock):
    store.race(lambda: new_log(store, clock), calls="list", path="table")
    log = DeltaLog(store, "table", clock=clock)
    assert not log.create(schema_json=SCHEMA_JSON, partition_columns=(), configuration={})
    assert log.latest_version() == 0


def test_leftovers_of_a_crashed_create_are_no_hindrance(store, clock):
    store.put_durable("table/_delta_log/.0.json.1234.tmp", b"torn")
    assert new_log(store, clock).latest_version() == 0


def test_each_version_in_between_is_inspected(log, store, clock):
    other = DeltaLog(store, "table", clock=clock)
    for n in range(3):
        commit(other, n, n=n)
    seen = []
    change = PlainChange(
        "TEST", check=lambda version, actions: seen.append((version, kafka_ds_info(actions)["n"]))
    )
    attempt = log.begin(change)
    assert log.commit(attempt, read_version=0) == 4
    assert seen == [(1, 0), (2, 1), (3, 2)]
    assert attempt.tried_versions.keys() == {4}


def test_a_conflict_in_between_ends_the_attempt(log, store, clock):
    commit(DeltaLog(store, "table", clock=clock), 0)

    def refuse(version, actions):
        raise Conflict("no", version=version)

    attempt = log.begin(PlainChange("TEST", check=refuse))
    with pytest.raises(Conflict) as caught:
        log.commit(attempt, read_version=0)
    assert caught.value.version == 1
    assert attempt.files_may_be_deleted
    assert log.latest_version() == 1


def test_a_version_lost_in_the_last_moment_is_inspected_too(log, store, clock):
    other = DeltaLog(store, "table", clock=clock)
    seen = []

    store.race(lambda: commit(other, 0, who="other"))
    attempt = log.begin(PlainChange("TEST", check=lambda version, _: seen.append(version)))
    assert log.commit(attempt, read_version=0) == 2
    assert seen == [1]
    assert not attempt.files_may_be_deleted


def test_a_lost_answer_is_a_win(log, store):
    store.lose()
    attempt = log.begin(PlainChange("TEST"))
    assert log.commit(attempt, read_version=0) == 1
    assert log.latest_version() == 1
    assert store.count("put_if_absent") == 3  # create, commit, and the same bytes once more
    assert log.commit(attempt, read_version=0) == 1


def test_a_store_that_answers_exists_to_its_own_write_has_our_commit(log, store):
    """As a client library does that retries by itself: the first put landed, the second says "exists"."""
    store.script(lambda put: put() and False, times=ALWAYS)
    attempt = log.begin(PlainChange("TEST"))
    assert log.commit(attempt, read_version=0) == 1
    assert attempt.is_ours(log.read_version(1))
    assert log.latest_version() == 1


def test_failures_before_the_write_are_retried_and_then_told(log, store, clock):
    store.refuse(NotWritten, times=2)
    assert commit(log, 0) == 1
    store.refuse(NotWritten, times=ALWAYS)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(NotCommitted):
        log.commit(attempt, read_version=1)
    assert attempt.files_may_be_deleted
    assert clock.slept[-len(RETRY_PAUSES_SECONDS) :] == list(RETRY_PAUSES_SECONDS)
    store.mend()
    assert log.commit(attempt, read_version=1) == 2


def land_unanswered(log, store):
    """A commit of version 1 that landed, though nobody could say so."""
    store.lose()
    store.refuse(times=ALWAYS)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(FateUnknown):
        log.commit(attempt, read_version=0)
    store.mend()
    return attempt


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_fate_is_settled_later_with_the_same_bytes(log, store, landed):
    if landed:
        attempt = land_unanswered(log, store)
    else:
        store.refuse(times=ALWAYS)
        attempt = log.begin(PlainChange("TEST"))
        with pytest.raises(FateUnknown) as caught:
            log.commit(attempt, read_version=0)
        assert caught.value.attempt is attempt
        store.mend()
    path = log.path(commit_file(1))
    assert (path in store.objects) == landed
    assert attempt.open_version == 1
    assert not attempt.files_may_be_deleted
    before = store.objects.get(path)
    assert log.commit(attempt, read_version=0) == attempt.won_version == 1
    assert attempt.is_ours(log.read_version(1))
    assert before in (None, store.objects[path])
    assert log.latest_version() == 1


def test_an_unknown_fate_may_turn_out_to_be_lost(log, store, clock):
    store.refuse(times=ALWAYS)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(FateUnknown):
        log.commit(attempt, read_version=0)
    store.mend()
    commit(DeltaLog(store, "table", clock=clock), 0)
    assert log.commit(attempt, read_version=0) == 2


def test_who_cannot_read_the_version_that_exists_does_not_know_its_fate(log, store, clock):
    other = DeltaLog(store, "table", clock=clock)

    def intrude():
        commit(other, 0)
        store.refuse(calls="read", times=ALWAYS)

    store.race(intrude)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(FateUnknown):
        log.commit(attempt, read_version=0)
    assert not attempt.files_may_be_deleted
    store.mend()
    assert log.commit(attempt, read_version=0) == 2


def pass_a_week(store, clock, log, *, up_to):
    """The table advances to version `up_to`, time passes, and the log is cleaned up below a checkpoint."""
    other = DeltaLog(store, "table", clock=clock)
    version = other.latest_version()
    while version < up_to:
        version = commit(other, version)
    clock.ms += 8 * DAY_MS
    store.put_durable(f"table/_delta_log/{up_to:020d}.checkpoint.parquet", b"stands for one")
    store.put_durable("table/_delta_log/_last_checkpoint", b'{"version":%d}' % up_to)
    for each in range(up_to):
        store.delete(f"table/{commit_file(each)}")
    commit(other, other.latest_version())


def test_a_writer_paused_past_the_clean_up_reads_that_its_versions_are_gone(log, store, clock):
    """Paused between reading and committing: version 1 is free again, and must not be won."""
    pass_a_week(store, clock, log, up_to=5)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=0)
    assert log.read_version(1) is None
    assert attempt.files_may_be_deleted
    assert log.latest_version() == 6


def test_a_writer_paused_in_the_moment_of_its_win_has_not_won(log, store, clock):
    store.race(lambda: pass_a_week(store, clock, log, up_to=5))
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=0)
    assert log.read_version(1) is None
    assert attempt.files_may_be_deleted
    assert commit(log, log.latest_version()) == 7


def test_a_sleeper_beside_another_sleeper_s_version_has_not_won_either(log, store, clock):
    first = store.read(f"table/{commit_file(0)}")

    def pause():
        pass_a_week(store, clock, log, up_to=5)
        store.put_durable(f"table/{commit_file(0)}", first)

    store.race(pause)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=0)
    assert log.read_version(1) is None


@pytest.mark.parametrize(("up_to", "checkpoint"), [(6, 5), (6, 1), (1, 1)])
def test_a_writer_paused_before_it_heard_of_its_win_has_won(log, store, clock, up_to, checkpoint):
    """The table went on, and a checkpoint holds what was won: to take the version back would make a hole."""

    def pause():
        go_on(store, clock, up_to=up_to, checkpoint=checkpoint)
        clock.ms += 2 * DAY_MS

    store.delay(pause)
    attempt = log.begin(PlainChange("TEST"))
    assert log.commit(attempt, read_version=0) == 1
    assert attempt.is_ours(log.read_version(1))
    assert log.latest_version() == up_to


def test_a_writer_paused_past_the_clean_up_before_it_heard_of_its_win_decides_nothing(
    log, store, clock
):
    """It may have been cleaned up with the others: nobody can tell, so its files stay."""

    def pause():
        go_on(store, clock, up_to=6, checkpoint=5)
        clock.ms += 8 * DAY_MS
        for version in range(5):
            store.delete(f"table/{commit_file(version)}")

    store.delay(pause)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=0)
    assert not attempt.files_may_be_deleted


def test_a_win_that_the_clean_up_ended_at_is_not_taken_back(log, store, clock):
    """All before it went, and it stayed with its checkpoint: others have acted on it for a week."""

    def pause():
        go_on(store, clock, up_to=6, checkpoint=1)
        clock.ms += 8 * DAY_MS
        store.delete(f"table/{commit_file(0)}")

    store.delay(pause)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=0)
    assert attempt.is_ours(log.read_version(1))
    assert not attempt.files_may_be_deleted


def test_a_long_pause_alone_does_not_lose_a_win(log, store, clock):
    def pause():
        clock.ms += 8 * DAY_MS

    store.race(pause)
    assert commit(log, 0) == 1


def test_an_open_fate_that_was_cleaned_up_stays_unknown(log, store, clock):
    """The commit landed, unanswered; a week later its version is gone. It must not be taken for lost."""
    attempt = land_unanswered(log, store)
    pass_a_week(store, clock, log, up_to=5)
    log.latest_version()  # What is newest may well be known again: that says nothing of version 1.
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=log.latest_version())
    assert not attempt.files_may_be_deleted
    assert log.read_version(1) is None


def go_on(store, clock, *, up_to, checkpoint):
    other = DeltaLog(store, "table", clock=clock)
    version = other.latest_version()
    while version < up_to:
        version = commit(other, version)
    store.put_durable(f"table/_delta_log/{checkpoint:020d}.checkpoint.parquet", b"stands for one")
    store.put_durable("table/_delta_log/_last_checkpoint", b'{"version":%d}' % checkpoint)


@pytest.mark.parametrize("days", [0, 1, 8])
def test_a_landed_commit_counts_though_a_checkpoint_came_after_it(log, store, clock, days):
    """The table went on, nothing was cleaned up: the version is ours, and its file stays."""
    attempt = land_unanswered(log, store)
    go_on(store, clock, up_to=6, checkpoint=5)
    clock.ms += days * DAY_MS
    assert log.latest_version() == 6
    assert log.commit(attempt, read_version=6) == 1
    assert attempt.is_ours(log.read_version(1))
    assert commit(log, log.latest_version()) == 7


def test_what_was_found_late_and_alone_is_not_decided(log, store, clock):
    """Ours, but whether from before the clean-up or after it cannot be told: nothing is deleted."""
    attempt = land_unanswered(log, store)
    go_on(store, clock, up_to=6, checkpoint=5)
    clock.ms += 8 * DAY_MS
    for version in (0, 2, 3, 4):
        store.delete(f"table/{commit_file(version)}")
    with pytest.raises(VersionsGone):
        log.commit(attempt, read_version=0)
    assert not attempt.files_may_be_deleted
    assert attempt.is_ours(log.read_version(1))


def test_a_win_that_was_found_does_not_pass_for_the_newest_version(log, store, clock):
    """The clean-up may come at any time after it: the versions that follow it are as old as it is."""
    attempt = land_unanswered(log, store)
    go_on(store, clock, up_to=6, checkpoint=5)
    clock.ms += 8 * DAY_MS
    assert log.commit(attempt, read_version=1) == 1
    for version in range(5):
        store.delete(f"table/{commit_file(version)}")
    with pytest.raises(VersionsGone):
        commit(log, 1)
    assert log.read_version(2) is None
    assert commit(log, log.latest_version()) == 7


def test_a_fresh_log_takes_up_an_unsettled_attempt(log, store, clock):
    store.refuse(times=ALWAYS)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(FateUnknown):
        log.commit(attempt, read_version=0)
    store.mend()
    commit(DeltaLog(store, "table", clock=clock), 0)
    assert DeltaLog(store, "table", clock=clock).commit(attempt, read_version=0) == 2


def test_files_that_waited_through_a_vacuum_are_given_up(log, store, clock):
    other = DeltaLog(store, "table", clock=clock)
    with_a_file = PlainChange(
        "TEST", actions=[{"add": {"path": "a", "size": 1, "dataChange": True}}]
    )
    attempt = log.begin(with_a_file)
    other.commit(other.begin(PlainChange("VACUUM START")), read_version=0)
    assert log.commit(attempt, read_version=0) == 2
    attempt = log.begin(with_a_file)
    clock.ms += 2 * 3_600_000
    other.commit(other.begin(PlainChange("VACUUM START")), read_version=2)
    with pytest.raises(FilesMayBeGone):
        log.commit(attempt, read_version=2)


def test_the_log_is_not_listed_for_each_commit(log, store):
    version = commit(log, log.latest_version())
    listed = store.count("list")
    for _ in range(50):
        version = commit(log, version)
        assert log.latest_version() == version
    assert store.count("list") == listed


def test_a_fresh_log_lists_from_the_last_checkpoint_on(log, store, clock):
    version = 0
    for _ in range(20):
        version = commit(log, version)
    store.put_durable(f"table/_delta_log/{15:020d}.checkpoint.parquet", b"stands for one")
    store.put_durable("table/_delta_log/_last_checkpoint", b'{"version":15}')
    fresh = DeltaLog(store, "table", clock=clock)
    assert fresh.latest_version() == 20
    assert fresh.listing(start=15).commits == [15, 16, 17, 18, 19, 20]
    assert list(fresh.listing().checkpoints) == [15]


@pytest.mark.parametrize("hint", [b"", b"{", b"[]", b'{"version":"7"}', b'{"version":900}'])
def test_a_useless_hint_is_passed_over(log, store, clock, hint):
    commit(log, 0)
    store.put_durable("table/_delta_log/_last_checkpoint", hint)
    assert DeltaLog(store, "table", clock=clock).latest_version() == 1


def test_a_checkpoint_with_a_part_missing_is_none(log, store):
    for part in (1, 3):
        name = f"table/_delta_log/{7:020d}.checkpoint.{part:010d}.{3:010d}.parquet"
        store.put_durable(name, b"part")
    assert log.listing().checkpoints == {}


def test_a_pause_that_only_the_time_of_day_shows_counts_as_sleep(monkeypatch):
    """A virtual machine that was paused for a month, and whose clocks but that of the day stood still."""
    now = {"boot": 5_000_000_000, "wall": 1_700_000_000_000}
    monkeypatch.setattr("kafka_ds.delta.log.since_boot_ms", lambda: now["boot"])
    monkeypatch.setattr(SystemLogClock, "wall_ms", lambda self: now["wall"])
    clock = SystemLogClock()
    first = clock.boot_ms()
    log = new_log(clock=clock)
    seen_ms = clock.boot_ms()
    now["wall"] += 30 * DAY_MS
    assert log.is_long_past(seen_ms)
    assert clock.boot_ms() == first + 30 * DAY_MS
    now["wall"] -= 10 * DAY_MS
    now["boot"] += 7
    assert clock.boot_ms() == first + 30 * DAY_MS + 7, "it never goes back"
    for _ in range(100):
        now["wall"] += 900
        assert clock.boot_ms() == first + 30 * DAY_MS + 7, "set right bit by bit"


NO_COMMITS = [b"{", b"[1]\n", b"\xff\xfe", b"7", b"", b"\n"]


@pytest.mark.parametrize("body", NO_COMMITS)
def test_a_version_that_is_no_commit_is_named(log, store, body):
    store.put_durable(log.path(commit_file(1)), body)
    with pytest.raises(CorruptLog, match=r"00001\.json"):
        log.read_version(1)


@pytest.mark.parametrize("body", NO_COMMITS)
@pytest.mark.parametrize("comes_late", [False, True])
def test_nothing_is_committed_behind_a_version_that_is_no_commit(log, store, body, comes_late):
    """Another engine's, after a loss of power: what it decided is not known, until somebody has put it right."""
    path = log.path(commit_file(1))

    if comes_late:
        store.race(lambda: store.put_durable(path, body))
    else:
        store.put_durable(path, body)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(FateUnknown if comes_late else NotCommitted, match=r"00001\.json"):
        log.commit(attempt, read_version=0)
    assert store.size(path) == len(body)
    store.delete(path)
    assert log.commit(attempt, read_version=0) == 1


def test_losing_for_ever_ends(log, store, clock, monkeypatch):
    monkeypatch.setattr("kafka_ds.delta.log.VERSIONS_TRIED_MAX", 3)
    unscripted = MemoryStore(clock)
    unscripted.objects, unscripted.modified = store.objects, store.modified
    other = DeltaLog(unscripted, "table", clock=clock)
    store.race(lambda: commit(other, other.latest_version()), times=ALWAYS)
    attempt = log.begin(PlainChange("TEST"))
    with pytest.raises(Contended):
        log.commit(attempt, read_version=0)
    assert attempt.files_may_be_deleted
