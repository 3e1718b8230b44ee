"""Admission to the disk cache: frequencies, the doorkeeper, eviction of the least used, expiry."""

from random import Random

import pytest

from broker.worker.cache.admission import Admission, FrequencySketch


def kept(admission: Admission, names: str) -> str:
    return "".join(name for name in names if name in admission)


def test_frequencies_are_never_too_low_and_age() -> None:
    sketch = FrequencySketch(1)
    for _ in range(20):
        sketch.add("often")
    sketch.add("once")
    assert (sketch.frequency("often"), sketch.frequency("once")) == (15, 1)
    assert sketch.frequency("never") == 0
    for number in range(2_560):
        sketch.add(f"other-{number}")
    assert sketch.frequency("often") < 15
    for number in range(10_000):
        sketch.add(f"more-{number}")
    assert sketch.frequency("often") <= 3


def test_what_is_asked_for_once_is_not_kept() -> None:
    admission = Admission(100, ttl_ms=-1, things=10)
    admission.asked("a", 0)
    assert admission.admit("a", 10, 0) is None
    admission.asked("a", 1)
    assert admission.admit("a", 10, 1) == []
    assert admission.admit("a", 10, 2) is None
    assert (kept(admission, "ab"), admission.size_bytes, len(admission)) == ("a", 10, 1)


def filled(**times: int) -> Admission:
    """Room for three of ten bytes each, and as many that were asked for so often, in this order."""
    admission = Admission(30, ttl_ms=-1, things=3)
    for name, count in times.items():
        for _ in range(count):
            admission.asked(name, 0)
        admission.admit(name, 10, 0)
    return admission


def test_the_least_recently_used_makes_room_for_what_is_asked_for_more() -> None:
    admission = filled(a=2, b=3, c=2)
    admission.asked("a", 1)
    for _ in range(4):
        admission.asked("d", 2)
    assert admission.admit("d", 10, 2) == ["b"]
    assert kept(admission, "abcd") == "acd"


def test_nobody_goes_for_what_is_asked_for_as_often() -> None:
    admission = filled(a=3, b=3, c=3)
    for _ in range(3):
        admission.asked("d", 2)
    assert admission.admit("d", 10, 2) is None
    assert kept(admission, "abcd") == "abc"


def test_a_large_one_takes_the_place_of_several_or_of_none() -> None:
    admission = filled(a=2, b=2, c=9)
    for _ in range(5):
        admission.asked("d", 1)
    assert admission.admit("d", 25, 1) is None
    assert kept(admission, "abcd") == "abc"
    assert admission.admit("d", 31, 1) is None
    assert admission.admit("d", 15, 1) == ["a", "b"]
    assert admission.size_bytes == 25


def test_what_nobody_wants_expires() -> None:
    admission = Admission(100, ttl_ms=1_000, things=10)
    for name in "ab":
        admission.asked(name, 0)
        admission.asked(name, 0)
        admission.admit(name, 10, 0)
    admission.asked("a", 500)
    assert admission.expired(999) == []
    assert admission.expired(1_000) == ["b"]
    assert admission.expired(1_500) == ["a"]
    assert admission.size_bytes == 0


def test_what_was_there_before_is_taken_as_far_as_there_is_room() -> None:
    admission = Admission(30, ttl_ms=1_000, things=3)
    gone = [admission.found(name, 12, used_ms) for name, used_ms in (("a", -5), ("b", 0), ("c", 3))]
    assert gone == [[], [], ["a"]]
    assert admission.expired(1_001) == ["b"]


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_and_scans_do_not_flush_what_is_popular(seed: int) -> None:
    random = Random(seed)
    admission = Admission(1_000, ttl_ms=-1, things=50)
    model: dict[str, int] = {}
    hits = asked = 0
    for now_ms in range(6_000):
        is_popular = random.random() < 0.3
        name = f"hot-{random.randrange(20)}" if is_popular else f"scan-{now_ms // 2}"
        size = 10 + random.randrange(20)
        admission.asked(name, now_ms)
        assert (name in admission) == (name in model)
        if is_popular and now_ms > 2_000:
            asked, hits = asked + 1, hits + (name in model)
        if name not in model:
            victims = admission.admit(name, size, now_ms)
            if victims is not None:
                for victim in victims:
                    del model[victim]
                model[name] = size
        assert admission.size_bytes == sum(model.values()) <= 1_000
    assert hits / asked > 0.9
