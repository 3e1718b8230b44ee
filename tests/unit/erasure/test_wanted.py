"""Which records are to be erased, and how a DELETE names them."""

import pyarrow as pa
import pytest

from broker.erasure.acts import TERMS_MAX, predicates
from broker.erasure.search import TOPIC_TABLE, TYPED_TABLE
from broker.erasure.wanted import WantedRecords, runs_of


def test_offsets_are_runs() -> None:
    assert runs_of([7, 1, 2, 2, 3, 9]) == [(1, 3), (7, 7), (9, 9)]
    assert runs_of([]) == []


def test_a_record_is_known_by_its_key_or_its_place() -> None:
    wanted = WantedRecords(b"ada", {1: [(4, 5)]})
    offsets = pa.array([3, 4, 5, 6, None], pa.int64())
    keys = pa.array([b"ada", b"ben", None, b"ad", b"ada"])
    assert wanted.among(0, offsets, keys).tolist() == [True, False, False, False, True]
    by_place = wanted.among(1, offsets, None, by_place=True)
    assert by_place.tolist() == [False, True, True, False, False]
    assert not wanted.among(1, offsets, None).any()
    mixed = wanted.among([1, 0, 1, 1, 1], offsets, keys.cast(pa.string()), by_place=True)
    assert mixed.tolist() == [True, False, True, False, True]
    for other in (pa.binary_view(), pa.string_view(), pa.large_string()):
        assert wanted.among(0, offsets, keys.cast(pa.string()).cast(other)).tolist()[0]
    assert wanted.among(0, offsets, keys.dictionary_encode()).tolist()[0]
    assert not wanted.among(0, offsets, pa.array([{"id": 1}] * 5)).any(), "a key of another kind"


@pytest.mark.parametrize("at", [0, 3, 6, 10])
def test_places_are_learnt_once(at: int) -> None:
    wanted = WantedRecords(b"ada", {0: [(4, 5)]})
    assert not wanted.learn(0, [4, 5])
    assert wanted.learn(0, [at, 4])
    assert [each for each in range(12) if wanted.has(0, each)] == sorted({4, 5, at})
    assert not wanted.has(1, 4)


def test_a_delete_names_places_and_no_key() -> None:
    (one,) = predicates(TOPIC_TABLE, {2: [5, 1, 2, 3, 9]})
    assert one == "partition = 2 AND (offset BETWEEN 1 AND 3 OR offset IN (5, 9))"
    many = list(predicates(TYPED_TABLE, {0: range(0, 4 * TERMS_MAX, 2), 1: [1]}))
    assert len(many) == 3
    assert many[2] == "_partition = 1 AND (_offset IN (1))"
