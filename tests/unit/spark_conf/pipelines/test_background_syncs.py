"""Syncs that an application of typed tables runs in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kafka_ds.errors import OptionError
from spark_conf.pipelines import main
from spark_conf.pipelines.background_syncs import BackgroundSyncs, background_syncs

IsEnded = Callable[[], bool]
Done = tuple[dict[str, str], dict[str, str]]


def test_one_that_fails_stops_no_other() -> None:
    class Panic(BaseException):
        """As those of Rust's libraries are."""

    def away(_: IsEnded) -> Done:
        raise RuntimeError("nobody thought of this")

    def panics(_: IsEnded) -> Done:
        raise Panic

    syncs = BackgroundSyncs(
        {"a": away, "p": panics, "b": lambda _: ({"done": "1"}, {"refused": "why"})}
    )
    assert syncs.run_once() == ["a", "p", "refused"]

    def interrupted(_: IsEnded) -> Done:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BackgroundSyncs({"a": interrupted}).run_once()


def test_it_goes_on_until_the_tables_end() -> None:
    rounds = threading.Semaphore(0)

    def sync(_: IsEnded) -> Done:
        rounds.release()
        return {}, {}

    with BackgroundSyncs({"a": sync}).running(interval_s=0.001):
        assert all(rounds.acquire(timeout=10) for _ in range(3))
    while rounds.acquire(blocking=False):
        pass
    assert not rounds.acquire(timeout=0.05)


def test_it_ends_at_the_table_that_it_is_at() -> None:
    begun, release = threading.Event(), threading.Event()
    said: list[bool] = []

    def sync(is_ended: IsEnded) -> Done:
        begun.set()
        release.wait(10)
        said.append(is_ended())
        return {}, {}

    other: list[IsEnded] = []
    syncs = BackgroundSyncs({"a": sync, "b": lambda each: (other.append(each), ({}, {}))[1]})
    with syncs.running(stop_s=0.01):
        assert begun.wait(10)
    # It did not wait for the table that hangs.
    (thread,) = (each for each in threading.enumerate() if each.name == "background syncs")
    release.set()
    thread.join(10)
    assert (said, other) == ([True], [])


def test_mistakes_are_told_by_argparse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for lake, catalog in (("lake", "glue://x"), ("hdfs://host", "")):
        words = ["--bootstrap-server", "b:1", "--lake", lake, "--iceberg", "--catalog", catalog]
        monkeypatch.setattr("sys.argv", ["main.py", *words])
        with pytest.raises(SystemExit):
            main.main()
        assert f"error: {'catalog' if catalog else 'lake'} " in capsys.readouterr().err


def test_an_address_of_no_catalog_is_refused(tmp_path: object) -> None:
    with pytest.raises(OptionError, match="glue://x: it must begin with thrift://"):
        background_syncs(
            str(tmp_path), {"kafka.bootstrap.servers": "b:1"}, iceberg=True, catalog="glue://x"
        )
