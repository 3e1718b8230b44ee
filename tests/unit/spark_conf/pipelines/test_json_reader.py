"""Which values of JSON are read by the columns of a table, and which are left to be looked at."""

from __future__ import annotations

import json
import math
from random import Random

import pyarrow as pa
import pytest

from spark_conf.pipelines import json_reader as module
from spark_conf.pipelines.json_reader import json_reader, object_type
from spark_conf.pipelines.kinds import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    MIXED,
    STRING,
    ArrayOf,
    ObjectOf,
)

COLUMNS = ObjectOf(
    (
        ("b", BIGINT),
        ("d", DOUBLE),
        ("t", BOOLEAN),
        ("s", STRING),
        ("a", ArrayOf(BIGINT)),
        ("o", ObjectOf((("x", BIGINT), ("m", MIXED)))),
        ("m", MIXED),
        ("b__string", STRING),
    )
)
READ = json_reader(object_type(COLUMNS))
EMPTY = dict.fromkeys("bdtsao")


def read(*values: bytes | None) -> list[dict[str, object] | None]:
    found: list[dict[str, object] | None] = READ(pa.array(values, pa.binary())).to_pylist()
    return found


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ("{}", {}),
        (' {"b":1}\n', {"b": 1}),
        ('{\n  "b": 9223372036854775807\n}', {"b": 2**63 - 1}),
        ('{"d":1}', {"d": 1.0}),
        ('{"d":12345678901234567890}', {"d": 12345678901234567890.0}),
        ('{"d":0.1000000000000000055511151231257827021181583404541015625}', {"d": 0.1}),
        ('{"d":2.2250738585072011e-308}', {"d": 2.2250738585072011e-308}),
        ('{"t":true,"s":null}', {"t": True}),
        ('{"s":"\\u0000\\ud83d\\ude00é/\\/"}', {"s": "\0😀é//"}),
        ('{"s":"2020-01-01 00:00:00"}', {"s": "2020-01-01 00:00:00"}),
        ('{"s":"NaN}{\\"i\\":1,\\"v\\":{}}"}', {"s": 'NaN}{"i":1,"v":{}}'}),
        ('{"a":[1,null]}', {"a": [1, None]}),
        ('{"a":[]}', {"a": []}),
        ('{"o":{}}', {"o": {"x": None}}),
        ('{"o":{"x":1}}', {"o": {"x": 1}}),
    ],
)
def test_an_object_of_known_fields_is_read(value: str, fields: dict[str, object]) -> None:
    assert read(value.encode()) == [{**EMPTY, **fields}]


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "null",
        "1",
        "[1]",
        '"x"',
        "{}{}",
        "{},{}",
        '{}}\n{"i":1,"v":{}',
        '{}},{"i":1,"v":{}',
        '{"b":1} x',
        '{"b":1}\0',
        '{"b":1,}',
        "{'b':1}",
        "{/**/}",
        '{"b":1',
        '{"b":01}',
        '{"b":+1}',
        '{"b":1.0}',
        '{"b":1e2}',
        '{"b":"1"}',
        '{"b":true}',
        '{"b":9223372036854775808}',
        '{"d":1.5e400}',
        '{"d":NaN}',
        '{"d":-Infinity}',
        '{"d":"1"}',
        '{"t":1}',
        '{"s":1}',
        '{"s":{}}',
        '{"s":"a\nb"}',
        '{"s":"\\ud800"}',
        '{"s":"',
        '{"a":[1.5]}',
        '{"a":[[1]]}',
        '{"a":{}}',
        '{"o":{"x":1,"y":2}}',
        '{"o":{"m":1}}',
        '{"o":[]}',
        '{"b":1,"b":2}',
        '{"o":{"x":1,"x":2}}',
        '{"z":null}',
        '{"B":1}',
        '{"m":1}',
        '{"b__string":"x"}',
        "\ufeff{}",
        '{"a":' + "[" * 100_000,
        '{"z":' * 100_000,
    ],
)
def test_any_other_value_is_left_and_its_neighbours_are_read(value: str) -> None:
    one = {**EMPTY, "b": 1}
    assert read(b'{"b":1}', value.encode(), None, b'{"b":1}') == [one, None, None, one]


def test_bytes_that_are_no_text_are_left() -> None:
    assert read(b'{"s":"\xff\xfe"}', b"\0\0\0\0\1{}", b"\xff") == [None] * 3


def test_values_that_make_a_line_together_are_left() -> None:
    """Neither with the next value nor with what stands between them."""
    assert read(b'{"s":"', b'"}') == [None, None]
    assert read(b'{"o":{}', b"}") == [None, None]
    assert read(b"", b'{}}\n{"i":1,"v":{}') == [None, None]


def test_of_many_values_those_are_read_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_AT_ONCE", 10_000)
    random = Random(1)
    values = [b'{"b":%d}' % n if random.random() < 0.99 else b'{"b":"x"}' for n in range(3_000)]
    fits = [{**EMPTY, "b": json.loads(each)["b"]} for each in values]
    assert read(*values) == [None if each["b"] == "x" else each for each in fits]


def test_where_hardly_any_value_fits_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALUES_PER_REFUSAL", 1_000)
    values = [b'{"b":%d}' % n if n % 2 else b"{" for n in range(1_000)]
    found = read(*values)
    assert len(found) == 1_000
    assert {each["b"] for each in found if each is not None} <= set(range(1, 1_000, 2))


def test_an_array_of_the_middle_is_read_as_it_is() -> None:
    values = pa.array([b"x", b'{"b":1}', None, b'{"b":2}', b"x"], pa.binary())
    assert [each and each["b"] for each in READ(values.slice(1, 3)).to_pylist()] == [1, None, 2]
    assert READ(values.slice(0, 0)).to_pylist() == []


def test_doubles_are_what_python_reads() -> None:
    random = Random(2)
    numbers = [random.uniform(-1, 1) * 10.0 ** random.randint(-300, 300) for _ in range(1_000)]
    values = [json.dumps({"d": each}).encode() for each in numbers]
    found = [each["d"] for each in read(*values) if each is not None]
    assert found == numbers
    assert all(map(math.isfinite, numbers))
