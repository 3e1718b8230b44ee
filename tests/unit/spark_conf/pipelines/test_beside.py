"""What is kept beside the typed tables."""

from __future__ import annotations

import threading

import pytest

from kafka_ds.errors import OptionError
from spark_conf.pipelines.beside import Beside, beside_at


def test_one_that_fails_stops_no_other() -> None:
    def away() -> tuple[dict[str, str], dict[str, str]]:
        raise RuntimeError("nobody thought of this")

    beside = Beside({"a": away, "b": lambda: ({"done": 1}, {"refused": "why"})})
    assert beside.run_once() == ["a", "refused"]


def test_it_goes_on_until_the_tables_end() -> None:
    rounds = threading.Semaphore(0)

    def sync() -> tuple[dict[str, str], dict[str, str]]:
        rounds.release()
        return {}, {}

    with Beside({"a": sync}).running(interval_s=0.001):
        assert all(rounds.acquire(timeout=10) for _ in range(3))
    while rounds.acquire(blocking=False):
        pass
    assert not rounds.acquire(timeout=0.05)


def test_an_address_of_no_catalog_is_refused(tmp_path: object) -> None:
    with pytest.raises(OptionError, match="glue://x: it begins with thrift://"):
        beside_at(
            str(tmp_path), {"kafka.bootstrap.servers": "b:1"}, iceberg=True, catalog="glue://x"
        )
