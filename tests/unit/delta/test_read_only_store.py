"""A store without its writes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.read_only import ReadOnlyStore
from kafka_ds.delta.store.store import NotWritten, Store


def created(store: Store) -> None:
    with store.create("t/new") as file:
        file.write(b"x")


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put_if_absent("t/new", b"x"),
        lambda store: store.put_durable("t/a", b"x"),
        created,
        lambda store: store.delete("t/a"),
        lambda store: store.make_durable("t/a"),
    ],
    ids=["put_if_absent", "put_durable", "create", "delete", "make_durable"],
)
def test_each_write_is_refused_and_leaves_nothing(
    write: Callable[[Store], object], tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").write_bytes(b"abc")
    with pytest.raises(NotWritten, match="opened for reading only") as refused:
        write(ReadOnlyStore(LocalStore(str(tmp_path))))
    assert refused.value.errno == errno.EROFS
    assert [each.name for each in (tmp_path / "t").iterdir()] == ["a"]
    assert (tmp_path / "t" / "a").read_bytes() == b"abc"


def test_reads_are_the_stores(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").write_bytes(b"abc")
    inner = LocalStore(str(tmp_path))
    store = ReadOnlyStore(inner)
    assert store.read("t/a") == b"abc"
    assert store.read_range("t/a", 1, 1) == b"b"
    assert store.size("t/a") == 3
    assert store.list("t") == inner.list("t")
    assert store.list("t", start_after="t/a") == ()
    assert store.folders("") == ("t",)
    assert store.local_path("t/a") == str(tmp_path / "t" / "a")
    assert store.uri("t") == inner.uri("t")
    assert store.delta_options == inner.delta_options
