"""The walk's machine code: made once, kept where nobody else may write, loaded only if it is whole."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_ds.wire import fitting, machine_code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where code is kept, for a process that has not looked yet; it holds the code that this one uses."""
    assert machine_code.build()
    kept = next(Path(each) for each in machine_code.private_folders())
    content = (kept / machine_code._file_name()).read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(fitting, "_walker", None)
    own = next(Path(each) for each in machine_code.private_folders())
    (own / machine_code._file_name()).write_bytes(content)
    return own


def file_in(folder: Path) -> Path:
    return folder / machine_code._file_name()


def test_it_is_loaded_from_the_folder_for_compiled_code(folder: Path) -> None:
    assert folder.parent.parent.name == "cache"
    assert machine_code.load()


def test_a_file_that_is_damaged_is_not_executed(folder: Path) -> None:
    content = file_in(folder).read_bytes()
    for damaged in (b"", content[:-1], content[:32], content[:90] + b"\xcc" + content[91:]):
        file_in(folder).write_bytes(damaged)
        assert not machine_code.load()


def test_a_file_that_others_may_write_is_not_executed(folder: Path) -> None:
    folder.chmod(0o777)
    assert not machine_code.load()


def test_there_is_none_on_other_machines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "sparc64")
    assert machine_code.build_beside() is None
    assert not machine_code.build()


def test_who_finds_none_has_another_process_make_it(folder: Path) -> None:
    made = file_in(folder).read_bytes()
    file_in(folder).unlink()
    thread = machine_code.build_beside()
    assert thread is not None
    assert not fitting.is_fast(), "nobody waits for it"
    thread.join(120)
    assert fitting.is_fast()
    assert len(file_in(folder).read_bytes()) == len(made)
    assert machine_code.build_beside() is None


def test_a_failure_to_make_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file_in(folder).unlink()
    monkeypatch.setattr("sys.executable", "/bin/false")
    thread = machine_code.build_beside()
    assert thread is not None
    thread.join(120)
    assert not fitting.is_fast()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


def test_loading_takes_no_numba() -> None:
    """A broker's process stays small."""
    code = (
        "import sys; from kafka_ds.wire import machine_code; assert machine_code.load(); "
        "print([m for m in ('numba', 'llvmlite', 'numpy') if m in sys.modules])"
    )
    assert machine_code.build()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
