"""Which log is cleaned next and how far, by the rules of Kafka's LogCleanerManager; the hash of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from broker.cleaner.throttle import Throttle
from broker.compaction.policy import LogState, SegmentSizes, SegmentState, cleanable, group
from broker.log.config import LogConfig
from kafka_ds.records import hashes
from kafka_ds.records.crc import crc32c
from tests.fakes.clock import ManualClock
from tests.fakes.settings import cleaner_settings, log_settings

NOW_MS = 1_000_000


def segment(base: int, size: int, first_ms: int = -1, newest_ms: int = -1) -> SegmentState:
    return SegmentState(base, size, lambda: first_ms, lambda: newest_ms)


# Three closed segments and an active one; each record is a second younger than the one before.
SEGMENTS = [
    segment(0, 100, NOW_MS - 40_000, NOW_MS - 31_000),
    segment(10, 200, NOW_MS - 30_000, NOW_MS - 21_000),
    segment(20, 300, NOW_MS - 20_000, NOW_MS - 11_000),
    segment(30, 400, NOW_MS - 10_000, NOW_MS - 1_000),
]


def state(**more: Any) -> LogState:
    fields: dict[str, Any] = {
        "segments": SEGMENTS,
        "cleaned_offset": None,
        "log_start_offset": 0,
        "log_end_offset": 40,
        "last_stable_offset": 40,
    }
    return LogState(**{**fields, **more})


def config(**more: Any) -> LogConfig:
    return log_settings(cleanup_policy=("compact",), **more)


@pytest.mark.parametrize(("copied", "expected"), [(0, 0), (19, 10), (20, 20), (40, 30), (None, 30)])
def test_what_is_not_in_the_lake_yet_is_not_cleaned(copied: int | None, expected: int) -> None:
    """Else its table would lack what compaction takes."""
    found = cleanable(state(copied_end_offset=copied), config(), NOW_MS)
    assert found.first_uncleanable_offset == expected


@pytest.mark.parametrize(
    ("cleaned", "stable", "expected"),
    [
        (None, 40, (0, 30, 0, 600)),
        (10, 40, (10, 30, 100, 500)),
        (15, 40, (15, 30, 300, 500)),
        (30, 40, (30, 30, 600, 0)),
        (None, 25, (0, 20, 0, 300)),
        (None, 20, (0, 20, 0, 300)),
        (None, 5, (0, 0, 0, 0)),
        (25, 12, (25, 25, 600, 0)),
        (35, 40, (35, 35, 600, 0)),
    ],
)
def test_the_part_that_is_cleaned(
    cleaned: int | None, stable: int, expected: tuple[int, ...]
) -> None:
    found = cleanable(state(cleaned_offset=cleaned, last_stable_offset=stable), config(), NOW_MS)
    assert found[:4] == expected
    assert found.invalid_checkpoint is None


@pytest.mark.parametrize("remembered", [4, 41])
def test_an_offset_outside_the_log_is_not_believed(remembered: int) -> None:
    found = cleanable(
        state(cleaned_offset=remembered, log_start_offset=5, last_stable_offset=40),
        config(),
        NOW_MS,
    )
    assert found.invalid_checkpoint == remembered
    assert (found.first_dirty_offset, found.cleanable_bytes) == (5, 600)


@pytest.mark.parametrize(("lag_ms", "end"), [(11_000, 30), (11_001, 20), (21_001, 10), (90_000, 0)])
def test_records_younger_than_the_least_lag_stay(lag_ms: int, end: int) -> None:
    found = cleanable(state(), config(min_compaction_lag_ms=lag_ms), NOW_MS)
    assert found.first_uncleanable_offset == end


def test_a_log_is_due_by_its_share_of_dirt() -> None:
    half = cleanable(state(cleaned_offset=20), config(), NOW_MS)
    assert half.ratio == 0.5
    assert not half.is_due(config(min_cleanable_dirty_ratio=0.5))
    assert half.is_due(config(min_cleanable_dirty_ratio=0.49))
    clean = cleanable(state(cleaned_offset=30), config(), NOW_MS)
    assert not clean.is_due(config(min_cleanable_dirty_ratio=0.0))


def test_a_log_is_due_when_a_record_has_waited_too_long() -> None:
    lazy = config(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=29_999)
    found = cleanable(state(cleaned_offset=10), lazy, NOW_MS)
    assert found.overdue_ms == 1
    assert found.is_due(lazy)
    patient = config(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=30_000)
    assert not cleanable(state(cleaned_offset=10), patient, NOW_MS).is_due(patient)
    # Where nothing may be cleaned, waiting does not help.
    assert not cleanable(state(last_stable_offset=0), lazy, NOW_MS).is_due(lazy)


def test_neighbours_that_fit_become_one() -> None:
    def bases(sizes: list[int], index: int = 1, ends: list[int] | None = None) -> list[list[int]]:
        starts = ends or [10 * (i + 1) for i in range(len(sizes))]
        measured = [
            SegmentSizes(start - 10, start, size, index, index)
            for start, size in zip(starts, sizes, strict=True)
        ]
        limits = config(segment_bytes=100, segment_index_bytes=10)
        return [[each.base_offset for each in part] for part in group(measured, limits)]

    assert bases([50, 50, 1]) == [[0, 10], [20]]
    assert bases([150, 10, 0, 90]) == [[0], [10, 20, 30]]
    assert bases([1, 1, 1], index=6) == [[0], [10], [20]]
    far = 2**31
    assert bases([1, 1], ends=[10, far]) == [[0, far - 10]]
    assert bases([1, 1], ends=[10, far + 1]) == [[0], [far - 9]]


def test_the_hash_of_a_key_is_siphash() -> None:
    """The first vectors that its authors give for 128 bits, with the key 00 01 … 0f."""
    data = np.arange(64, dtype=np.uint8)
    secret = np.uint64(0x0706050403020100), np.uint64(0x0F0E0D0C0B0A0908)
    expected = {
        0: "a3817f04ba25a8e66df67214c7550293",
        1: "da87c1d86b99af44347659119b22fc45",
        2: "8177228da4a45dc7fca38bdef60affe4",
    }
    with np.errstate(over="ignore"):
        for length, text in expected.items():
            low, high = hashes.siphash(data, 0, length, secret)
            assert (int(low) | int(high) << 64).to_bytes(16, "little").hex() == text
        # Each length of the last word, and no two of them alike.
        assert len({hashes.siphash(data, 0, length, secret) for length in range(64)}) == 64


def test_the_checksum_is_crc_32c() -> None:
    data = np.random.default_rng(1).integers(0, 256, 300, np.uint8)
    for start, end in ((0, 0), (0, 1), (3, 10), (5, 300), (1, 64)):
        assert hashes.crc32c_of(data, start, end) == crc32c(data[start:end].tobytes())


def test_cleaners_share_what_they_may_read_and_write() -> None:
    clock = ManualClock(5_000)
    throttle = Throttle(clock)
    assert throttle.wait_seconds(1 << 40) == 0, "there is no limit"
    throttle.limit(1000.0)
    assert throttle.wait_seconds(0) == 0
    assert throttle.wait_seconds(500) == 0.5
    assert throttle.wait_seconds(500) == 1.0
    clock.ms += 10_000
    assert throttle.wait_seconds(100) == 0.1, "what was not used is not saved up"
    throttle.limit(cleaner_settings().log_cleaner_io_max_bytes_per_second)
    clock.ms += 10_000
    assert throttle.wait_seconds(1 << 40) == 0


def test_the_memory_of_all_cleaners_is_shared_among_them() -> None:
    settings = cleaner_settings(log_cleaner_threads=2)
    assert settings.keys_max == int((64 << 20) // 24 * 0.9)
    assert settings.read_bytes == 128 << 10
    assert cleaner_settings(log_cleaner_dedupe_buffer_size=0).keys_max == 1
