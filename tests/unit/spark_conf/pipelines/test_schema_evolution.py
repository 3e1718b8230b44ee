import pytest

from spark_conf.pipelines.kinds import BIGINT, DOUBLE, STRING, ArrayOf, Kind, ObjectOf
from spark_conf.pipelines.schema_evolution import (
    COLUMNS_MAX,
    ObjectFields,
    kind_at,
    place,
    with_declared,
)


def placed(before: dict[str, Kind], **seen: list[str]) -> ObjectFields:
    """Each kind is of a record of its own, in the order in which they are given."""
    at = iter(range(100))
    kinds = {name: {text: (0, next(at)) for text in texts} for name, texts in seen.items()}
    return place(ObjectOf(tuple(before.items())), kinds, reserved=["_key"])


def columns(level: ObjectFields) -> dict[str, Kind]:
    return dict(level.kind.fields)


def test_a_field_becomes_a_column_of_its_first_kind() -> None:
    level = placed(
        {}, a=["BIGINT"], b=["STRING", "VOID"], c=["ARRAY<OBJECT<x: BIGINT>>"], d=["VOID"]
    )
    assert columns(level) == {
        "a": BIGINT,
        "b": STRING,
        "c": ArrayOf(ObjectOf((("x", BIGINT),))),
    }
    assert level.clashes == ()


def test_a_value_that_does_not_fit_gets_a_column_of_its_own_which_is_reported_once() -> None:
    level = placed({"price": BIGINT}, price=["BIGINT", "STRING", "DOUBLE", "ARRAY<BIGINT>"])
    assert columns(level) == {
        "price": BIGINT,
        "price__string": STRING,
        "price__double": DOUBLE,
        "price__json": STRING,
    }
    assert [(each.column, each.place) for each in level.clashes] == [
        ("price__string", (0, 1)),
        ("price__double", (0, 2)),
        ("price__json", (0, 3)),
    ]
    again = placed(columns(level), price=["STRING"])
    assert (columns(again), again.clashes) == (columns(level), ())


@pytest.mark.parametrize("order", [["BIGINT", "DOUBLE"], ["DOUBLE", "BIGINT"]])
def test_a_new_column_of_numbers_takes_both_kinds(order: list[str]) -> None:
    assert columns(placed({}, n=order)) == {"n": DOUBLE}
    assert columns(placed({"n": DOUBLE}, n=["BIGINT"])) == {"n": DOUBLE}


def test_objects_are_placed_field_by_field() -> None:
    level = placed(
        {"pos": ObjectOf((("lat", BIGINT),))},
        pos=["OBJECT<lat: STRING, lon: DOUBLE>", "OBJECT<lon: BIGINT>"],
    )
    assert columns(level) == {
        "pos": ObjectOf((("lat", BIGINT), ("lat__string", STRING), ("lon", DOUBLE)))
    }
    assert level.clashes[0].reason == "pos.lat is string: stored in column pos.lat__string"


def test_objects_in_arrays_get_fields_but_no_columns_beside_them() -> None:
    items = ArrayOf(ObjectOf((("a", BIGINT),)))
    level = placed({"items": items}, items=["ARRAY<OBJECT<b: STRING>>", "ARRAY<OBJECT<a: STRING>>"])
    assert columns(level) == {
        "items": ArrayOf(ObjectOf((("a", BIGINT), ("b", STRING)))),
        "items__json": STRING,
    }


@pytest.mark.parametrize("name", ["first name", "_KEY", "price__string", 'a"b', "a=b", "", "PRICE"])
def test_a_name_that_no_column_can_have_is_rescued(name: str) -> None:
    level = place(ObjectOf((("price", BIGINT),)), {name: {"BIGINT": (0, 0)}}, reserved=["_key"])
    assert columns(level) == {"price": BIGINT}
    assert level.fields[0].rescued == {"BIGINT"}


def test_what_is_refused_within_an_object_rescues_all_of_it_and_keeps_the_rest_as_columns() -> None:
    text = "OBJECT<`a b`: BIGINT, c: BIGINT>"
    level = placed({}, o=[text, "OBJECT<c: STRING>"])
    assert level.fields[0].rescued == {text}
    assert columns(level) == {"o": ObjectOf((("c", BIGINT), ("c__string", STRING)))}


def test_an_object_without_any_column_is_none() -> None:
    level = placed({}, o=["OBJECT<`a b`: BIGINT>", "OBJECT<>"])
    assert columns(level) == {}
    assert level.fields[0].rescued == {"OBJECT<`a b`: BIGINT>"}


def test_columns_are_limited_and_so_is_depth() -> None:
    many = {f"f{n}": {"BIGINT": (0, n)} for n in range(COLUMNS_MAX + 5)}
    level = place(ObjectOf(()), many)
    assert len(level.kind.fields) == COLUMNS_MAX
    assert [each.name for each in level.fields if each.rescued] == [
        f"f{n}" for n in range(COLUMNS_MAX, COLUMNS_MAX + 5)
    ]
    deep = "OBJECT<a: " * 500 + "BIGINT" + ">" * 500
    kind: Kind = place(ObjectOf(()), {"a": {deep: (0, 0)}}).kind
    depth = 0
    while isinstance(kind, ObjectOf):
        depth, kind = depth + 1, kind.fields[0][1]
    assert depth < 30


def test_declared_columns_are_added_unless_there_is_another_one() -> None:
    before = ObjectOf((("n", BIGINT), ("pos", ObjectOf((("lat", BIGINT),)))))
    declared = {
        ("n",): DOUBLE,
        ("N",): DOUBLE,
        ("n", "x"): DOUBLE,
        ("pos", "lat"): DOUBLE,
        ("pos", "lon"): DOUBLE,
        ("a", "b", "c"): STRING,
    }
    found = with_declared(before, declared)
    assert dict(found.fields) == {
        "n": BIGINT,
        "pos": ObjectOf((("lat", BIGINT), ("lon", DOUBLE))),
        "a": ObjectOf((("b", ObjectOf((("c", STRING),))),)),
    }
    kept = {path for path, kind in declared.items() if kind_at(found, path) == kind}
    assert kept == {("pos", "lon"), ("a", "b", "c")}
    many = with_declared(ObjectOf(()), {(f"f{n}",): DOUBLE for n in range(COLUMNS_MAX + 1)})
    assert len(many.fields) == COLUMNS_MAX
