"""The errors of a response are found wherever its declaration has some."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kafka_ds.protocol.error_codes import error_codes
from kafka_ds.protocol.messages import RESPONSES
from kafka_ds.protocol.types import fields_of, is_struct, message_info
from tests.wire.random_messages import random_message


def codes_of(value: Any) -> Iterator[int]:
    """All fields named error_code, by reflection."""
    if isinstance(value, list):
        for each in value:
            yield from codes_of(each)
    elif is_struct(type(value)):
        for field in fields_of(type(value)):
            inner = getattr(value, field.name)
            if field.name == "error_code":
                yield inner
            else:
                yield from codes_of(inner)


@pytest.mark.parametrize("cls", RESPONSES.values(), ids=lambda cls: cls.__name__)
def test_errors_are_found_in_every_response(cls: type) -> None:
    found = 0
    for version in range(message_info(cls).versions.first, message_info(cls).versions.last + 1):
        for seed in range(3):
            response = random_message(cls, version, Random(seed))
            expected = sorted(code for code in codes_of(response) if code)
            assert sorted(error_codes(response)) == expected
            found += len(expected)
    assert found > 0
