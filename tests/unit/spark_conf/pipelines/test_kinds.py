from spark_conf.pipelines.kinds import (
    BIGINT,
    BOOLEAN,
    DEPTH_MAX,
    DOUBLE,
    MIXED,
    STRING,
    VOID,
    ArrayOf,
    ObjectOf,
    ddl,
    is_empty,
    parse_kind,
    texts_of_fields,
)

TEXT = "OBJECT<a: BIGINT, `b``> c`: ARRAY<OBJECT<x: DECIMAL(3,1), y: VOID>>, d: DECIMAL(20,0), z: OBJECT<>>"


def test_the_text_of_spark_is_a_kind() -> None:
    items = ArrayOf(ObjectOf((("x", DOUBLE), ("y", VOID))))
    assert parse_kind(TEXT) == ObjectOf(
        (("a", BIGINT), ("b`> c", items), ("d", DOUBLE), ("z", ObjectOf(())))
    )
    assert list(map(parse_kind, ("STRING", "BOOLEAN", "DOUBLE", "VARIANT"))) == [
        STRING,
        BOOLEAN,
        DOUBLE,
        MIXED,
    ]


def test_the_text_of_an_object_is_the_texts_of_its_fields() -> None:
    assert texts_of_fields(TEXT) == {
        "a": "BIGINT",
        "b`> c": "ARRAY<OBJECT<x: DECIMAL(3,1), y: VOID>>",
        "d": "DECIMAL(20,0)",
        "z": "OBJECT<>",
    }
    assert texts_of_fields("OBJECT<>") == {}


def test_what_is_nested_deeply_is_mixed_and_takes_no_stack() -> None:
    deep = "ARRAY<" * 5_000 + "BIGINT" + ">" * 5_000
    kind = parse_kind(deep)
    for _ in range(DEPTH_MAX):
        assert isinstance(kind, ArrayOf)
        kind = kind.element
    assert kind == MIXED


def test_what_holds_nothing_is_empty() -> None:
    assert all(map(is_empty, map(parse_kind, ("VOID", "ARRAY<VOID>", "OBJECT<a: ARRAY<VOID>>"))))
    assert not is_empty(parse_kind("OBJECT<a: VOID, b: BIGINT>"))


def test_a_kind_is_a_type_of_spark() -> None:
    kind = ObjectOf((("a b", ArrayOf(ObjectOf((("x", DOUBLE),)))), ("c", STRING)))
    assert ddl(kind) == "struct<`a b`:array<struct<`x`:double>>,`c`:string>"
