"""A minute of the soak; and that its judge sees what grows."""

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from broker.event_loop import INTERVAL_SECONDS, EventLoopTimes, ThreadTimes
from tests.soak.__main__ import restarts, soak
from tests.soak.ageing import AGE_S, age
from tests.soak.judging import BOUNDS, Bound, Sample, gaps, judge, judge_stalls, stalls_in
from tests.soak.sampling import EXPIRING, METADATA_FILE, MIB, logs_of, role_of, tables_of


def samples(*lives: tuple[float, float], length_s: int | Sequence[int] = 900) -> list[Sample]:
    """So much at each life's beginning, and so much more an hour."""
    lengths = [length_s] * len(lives) if isinstance(length_s, int) else length_s
    found, began = [], 0
    for life, ((first, growth), length) in enumerate(zip(lives, lengths, strict=True)):
        for at in range(0, length, 5):
            value = first + growth * at / 3600 + at % 3
            found.append(Sample(at_s=began + at, life=life, values={"x": value}))
        began += length
    return found


@pytest.mark.parametrize(
    ("lives", "of_process", "bounded"),
    [
        ([(100, 0), (300, 0)], True, True),  # another life begins elsewhere
        ([(100, 0), (300, 0)], False, False),
        ([(100, 60), (100, 61), (100, 0)], True, False),
        ([(100, 0), (100, 61), (100, 0)], True, True),
        ([(900, -10)], True, False),  # above the most that it may be
        ([(100, 0), (140, 0), (180, 0)], True, False),  # no life grows, but each begins higher
        ([(100, 0), (140, 0), (100, 0)], True, True),
    ],
)
def test_growth_is_seen(lives: list[tuple[float, float]], of_process: bool, bounded: bool) -> None:
    bound = Bound(most=800, growth_an_hour=50, of_process=of_process)
    (verdict,) = judge(samples(*lives), {"x": bound})
    assert verdict.is_bounded is bounded


@pytest.mark.parametrize(
    ("of_short", "of_long", "bounded"), [(600, 0, True), (0, 60, False), (0, 0, True)]
)
def test_a_process_is_judged_by_its_long_lives(
    of_short: float, of_long: float, bounded: bool
) -> None:
    bound = Bound(most=800, growth_an_hour=50, of_process=True)
    short, lengths = (100, of_short), (300, 300, 1500, 300, 300)
    seen = samples(short, short, (100, of_long), short, short, length_s=lengths)
    (verdict,) = judge(seen, {"x": bound})
    assert verdict.is_bounded is bounded, verdict


def test_an_hour_has_restarts_and_a_long_life() -> None:
    assert restarts(3600) == [300, 600, 900, 2400, 2700, 3000, 3300]
    assert restarts(60) == []


def test_what_lies_on_disks_is_counted(tmp_path: Path) -> None:
    data, lake = tmp_path / "log", tmp_path / "lake"
    for name, size in (("a-0", MIB), ("__b-1", 3 * MIB)):
        (data / name).mkdir(parents=True)
        (data / name / METADATA_FILE).touch()
        (data / name / "0.index").touch()
        (data / name / "0.log").write_bytes(bytes(size))
    (data / "cache").mkdir()
    (data / "cache" / "0.log").touch()
    assert logs_of(data) == {
        "segments": 2,
        "segments of internal topics": 1,
        "files of logs": 6,
        "log MiB": 4,
        "internal topics MiB": 3,
    }
    table = lake / "topics" / EXPIRING
    for _ in range(2):
        write_deltalake(table, pa.table({"a": [1]}), mode="overwrite")
    (table / "_residue" / "partition=0").mkdir(parents=True)
    (table / "_residue" / "partition=0" / "0.residue").touch()
    write_deltalake(lake / "__system", pa.table({"a": [1]}))
    assert tables_of(lake) == {
        "live files of topics": 1,
        "live files of system tables": 1,
        "commits since a checkpoint": 2,
        "files of Delta logs": 3,
        "files of tables": 3,
        "residue files of what expires": 1,
        "table folders": 2,
    }


def test_a_week_passes_for_tables_alone(tmp_path: Path) -> None:
    commit, lease = tmp_path / "t/_delta_log/0.json", tmp_path / "t/_lease/1.lease"
    secret = tmp_path / "_credentials/a.json"
    for file in (commit, lease, secret):
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (10**9, 10**9))
    assert age(tmp_path) == 1
    assert [file.stat().st_mtime for file in (commit, lease, secret)] == [10**9 - AGE_S, 1e9, 1e9]


def test_a_short_run_says_nothing_of_growth() -> None:
    bound = Bound(most=800, growth_an_hour=50, of_process=False)
    (verdict,) = judge(samples((1, 9000), length_s=60), {"x": bound})
    assert verdict.growth_an_hour is None and verdict.is_bounded


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python3 -m broker.worker.main 7 {} 8", "worker"),
        ("python3 -X dev -m broker.cleaner.main 9 {}", "cleaner"),
        ("python3 -m broker --override node.id=1", None),  # forked, and not what it will be yet
        ("python3 -m", None),
        ("", None),
    ],
)
def test_the_children_of_a_broker_are_told_apart(command: str, role: str | None) -> None:
    assert role_of(command.split()) == role


def test_what_is_lost_or_there_twice_is_seen() -> None:
    assert gaps([3, 1, 2, 2, 9], {1, 2, 3, 4}) == ([4], [2])


def test_a_stall_for_want_of_a_core_is_not_the_brokers(caplog: pytest.LogCaptureFixture) -> None:
    times = ThreadTimes(0.0, 0.0, 0.0, 0)
    now_s = 0.0
    stalls = EventLoopTimes(now_s=lambda: now_s, times=lambda: times)
    for running, waiting in ((100.0, 5_900.0), (4_000.0, 0.0)):
        now_s += INTERVAL_SECONDS + (running + waiting) / 1_000
        times = ThreadTimes(times.running + running, times.waiting + waiting, 0.0, 0)
        stalls.woke_up()
    found = stalls_in("\n".join(caplog.messages))
    assert [(each.length_ms, each.own_ms) for each in found] == [(6_000, 100), (4_000, 4_000)]
    line, wrong = judge_stalls(found)
    assert "2, of them 1 for want of a core; the longest 6000 ms (5900 ms for want" in line
    assert len(wrong) == 1 and "for 4000 ms for its own reasons" in wrong[0]
    assert judge_stalls([]) == ("stalls of the event loop: none", [])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_minute_of_everything(tmp_path: Path) -> None:
    seen, wrong, counts = soak(tmp_path, 60, restarts_s=(20, 40))
    assert wrong == []
    assert counts["acknowledged, idempotent"] and counts["acknowledged, committed"]
    assert counts["starts of the broker"] >= 2 and counts["topics made and deleted"]
    verdicts = judge(seen)
    assert {each.name for each in verdicts} == set(BOUNDS)
    assert all(each.is_bounded for each in verdicts), verdicts
