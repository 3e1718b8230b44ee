"""Conditions are asked of pieces, so they may not be about all rows."""

import numpy as np
import pyarrow as pa
import pytest

from tests.fakes.lake_rows import batch_of

condition = pytest.importorskip("broker.erasure.condition")
pytest.importorskip("duckdb")


@pytest.mark.parametrize(
    "text",
    [
        '"offset" = (SELECT max("offset") FROM rows)',
        '"offset" = max("offset")',
        "exists (FROM rows)",
        "row_number() OVER () = 1",
    ],
)
def test_what_is_about_all_rows_is_refused(text):
    with pytest.raises(condition.InvalidCondition):
        condition.RecordCondition(text).holds(np.array(0), batch_of(range(3)))


@pytest.mark.parametrize(
    "text",
    [
        "timestamp < now()",
        "timestamp::date < current_date",
        "len(list_filter([1], lambda x: random() < x)) = 1",
        "timestamp < current_localtimestamp()",
        "age(timestamp) > INTERVAL 1 DAY",
        "1 = 1) OR (random() < 0.5",
    ],
)
def test_what_changes_from_search_to_search_is_refused(text):
    """Rows that it held of at first would be taken for erased."""
    with pytest.raises(condition.InvalidCondition, match="changes between evaluations"):
        condition.RecordCondition(text)


def test_json_is_read_out_of_bytes():
    rows = batch_of(range(2)).set_column(
        batch_of(range(2)).schema.get_field_index("value"),
        "value",
        pa.array([b'{"who": "ada"}', None], pa.binary()),
    )
    holds = condition.RecordCondition("value->>'who' = 'ada'").holds
    assert holds(np.array(0), rows).tolist() == [True, False]


def test_a_condition_holds_of_rows():
    holds = condition.RecordCondition("decode(key) = 'key-2' AND partition = 0").holds
    assert holds(np.array(0), batch_of(range(4))).tolist() == [False, False, True, False]
