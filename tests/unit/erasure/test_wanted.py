"""Which records are to be erased, and how a DELETE names them."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from broker.erasure import removal
from broker.erasure.removal import TERMS_MAX, predicates
from broker.erasure.search import TOPIC_TABLE, TYPED_TABLE
from broker.erasure.wanted import WantedRecords


def test_a_record_is_known_by_its_key_or_its_place() -> None:
    wanted = WantedRecords(b"ada", {1: [4, 5]})
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
    wanted = WantedRecords(b"ada", {0: [4, 5]})
    assert not wanted.learn({0: [5, 4]})
    assert wanted.learn({0: [at, 4]})
    assert np.flatnonzero(wanted.known(0, np.arange(12))).tolist() == sorted({4, 5, at})
    assert not wanted.known(1, np.array([4])).any()


def holding(predicate: str, count: int) -> set[int]:
    """The offsets of which it holds."""
    rows = f"(SELECT range AS _offset, 0 AS _partition FROM range({count}))"
    return {at for (at,) in duckdb.sql(f"SELECT _offset FROM {rows} WHERE {predicate}").fetchall()}


@pytest.mark.parametrize("terms", [3, 20, 5000])
def test_deletes_name_each_place_and_no_other(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "TERMS_MAX", terms)
    random = np.random.default_rng(terms)
    offsets = np.unique(np.append(random.integers(0, 400, 60), np.arange(90, 130)))
    deletes = [holding(each, 400) for each in predicates(TYPED_TABLE, {0: offsets})]
    assert sorted(each for found in deletes for each in found) == offsets.tolist()


def test_a_delete_names_places_and_no_key() -> None:
    (one,) = predicates(TOPIC_TABLE, {2: np.array([1, 2, 3, 5, 9])})
    assert one == (
        "partition = 2 AND offset BETWEEN 1 AND 9 AND (offset BETWEEN 1 AND 3 OR offset IN (5, 9))"
    )
    many = {0: np.arange(0, 4 * TERMS_MAX, 2), 1: np.array([1]), 2: np.array([], np.int64)}
    deletes = list(predicates(TYPED_TABLE, many))
    assert len(deletes) == 4
    assert deletes[3] == "_partition = 1 AND _offset BETWEEN 1 AND 1 AND (_offset IN (1))"
