"""Types of registered schemas as column types: what merges, and what cannot be told apart."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from spark_conf.pipelines.avro import check_names
from spark_conf.pipelines.schema_columns import merged_type

LONG, TEXT = t.LongType(), t.StringType()


def struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def test_a_map_with_other_keys_is_another_type() -> None:
    now = t.MapType(LONG, struct(a=LONG))
    assert merged_type(now, t.MapType(TEXT, struct(a=LONG))) is None
    assert merged_type(now, t.MapType(LONG, struct(b=TEXT))) == t.MapType(
        LONG, struct(a=LONG, b=TEXT)
    )


@pytest.mark.parametrize(
    "around", [lambda each: each, t.ArrayType, lambda each: t.MapType(TEXT, struct(x=each))]
)
def test_fields_that_differ_in_case_alone_are_refused_at_any_depth(around: object) -> None:
    assert callable(around)
    check_names(around(struct(id=LONG, d=LONG)))
    with pytest.raises(ValueError, match="fields id and ID differ in case alone"):
        check_names(around(struct(id=LONG, ID=LONG)))
