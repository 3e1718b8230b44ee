"""A lake that is read through fsspec: the same files as in its folder, nothing remembered, nothing written."""

import json
from pathlib import Path

import fsspec
import pytest

from kafka_ds.delta.store.fsspec_store import FsspecStore
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.delta.store.store import Store, UnsupportedStore
from kafka_ds.delta.store.uri import open_for_reading, open_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("a/x/1", "one"), ("a/x/2", "twotwo"), ("a/y/3", ""), ("b/4", "four")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def in_memory(folder: Path) -> Store:
    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/", f"memory://{folder.name}", recursive=True)
    return FsspecStore(f"memory://{folder.name}")


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_it_reads_what_the_folder_holds(folder: Path, kind: str) -> None:
    own = LocalStore(str(folder))
    store = FsspecStore(f"local://{folder}") if kind == "local" else in_memory(folder)
    assert store.folders("") == own.folders("") == ("a", "b")
    assert store.folders("a") == ("x", "y") and store.folders("nowhere") == ()
    for prefix, after in (("", ""), ("a", ""), ("a/x", "a/x/1"), ("nowhere", "")):
        listed, wanted = (each.list(prefix, start_after=after) for each in (store, own))
        assert [(e.path, e.size) for e in listed] == [(e.path, e.size) for e in wanted]
        assert all(entry.modified_ms > 1_600_000_000_000 for entry in listed)
    for entry in own.list(""):
        assert store.read(entry.path) == own.read(entry.path)
        assert store.size(entry.path) == entry.size
        for start, length in ((0, 2), (1, 100), (entry.size, 1), (100, 5)):
            assert store.read_range(entry.path, start, length) == own.read_range(
                entry.path, start, length
            )
        assert store.read(store.uri(entry.path)) == own.read(entry.path), "as other engines name it"


@pytest.mark.parametrize("path", ["a/x/9", "nowhere/1"])
def test_what_is_not_there_is_not_found(folder: Path, path: str) -> None:
    store = FsspecStore(f"local://{folder}")
    assert store.size(path) is None
    for read in (store.read, lambda each: store.read_range(each, 0, 1)):
        with pytest.raises(FileNotFoundError, match=path):
            read(path)


def test_what_comes_later_is_seen(folder: Path) -> None:
    store = FsspecStore(f"local://{folder}")
    assert store.size("a/x/5") is None and len(store.list("a/x")) == 2
    (folder / "a/x/5").write_text("five")
    assert store.size("a/x/5") == 4 and len(store.list("a/x")) == 3


def test_nothing_is_written(folder: Path) -> None:
    store = FsspecStore(f"local://{folder}")
    before = [*folder.rglob("*")]
    for write in (
        lambda: store.put_if_absent("c", b""),
        lambda: store.put_durable("c", b""),
        lambda: store.create("c"),
        lambda: store.delete("b/4"),
        lambda: store.make_durable("b/4"),
    ):
        with pytest.raises(UnsupportedStore, match="read, never written"):
            write()
    assert [*folder.rglob("*")] == before


def test_an_address_goes_to_the_store_that_knows_it(folder: Path) -> None:
    assert isinstance(open_for_reading(str(folder)), LocalStore)
    assert isinstance(open_for_reading(f"file://{folder}"), LocalStore)
    assert isinstance(open_for_reading(f"local://{folder}"), FsspecStore)
    assert isinstance(open_for_reading(f"file://{folder}", '{"auto_mkdir": "false"}'), FsspecStore)
    with pytest.raises(UnsupportedStore, match="is not a folder or an s3://"):
        open_store(f"local://{folder}")


@pytest.mark.parametrize("address", ["nowhere://x", "oss://bucket/lake"])
def test_a_file_system_that_is_not_installed_is_named(address: str) -> None:
    with pytest.raises(UnsupportedStore, match=f"{address}: .*(not known|[Ii]nstall)"):
        open_for_reading(address)


def test_options_are_texts_or_jsons_values(folder: Path) -> None:
    given = {"auto_mkdir": "true", "id": "123", "kwargs": '{"a": [1]}', "path": "{x"}
    store = FsspecStore(f"local://{folder}", json.dumps(given))
    passed = {**given, "auto_mkdir": True, "kwargs": {"a": [1]}, "use_listings_cache": False}
    assert store.file_system.storage_options == passed
