"""Sizes and counts as a person reads them."""

from __future__ import annotations

import pytest

from kafka_ds.process.amounts import counted, size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"), (5 * 1024**3, "5.0 GiB")],
)
def test_a_size_has_the_unit_that_fits_it(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_one_is_no_plural() -> None:
    assert [counted(n, "log") for n in (0, 1, 2)] == ["0 logs", "1 log", "2 logs"]
