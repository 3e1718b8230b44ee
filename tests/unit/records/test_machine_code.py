"""The walk's machine code: made once, kept where nobody else may write, loaded only if it is whole."""

from __future__ import annotations

import logging
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_ds.records import machine_code, validation, validation_loop


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where code is kept, for a process that has not looked yet; it holds the code that this one uses."""
    assert machine_code.build()
    kept = next(Path(each) for each in machine_code.private_folders())
    content = (kept / machine_code.file_name()).read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(validation, "in_use", None)
    own = next(Path(each) for each in machine_code.private_folders())
    (own / machine_code.file_name()).touch(mode=0o600)
    (own / machine_code.file_name()).write_bytes(content)
    return own


def file_in(folder: Path) -> Path:
    return folder / machine_code.file_name()


def test_it_is_loaded_from_the_folder_for_compiled_code(folder: Path) -> None:
    assert folder.parent.parent.name == "cache"
    assert machine_code.load()


def test_a_file_that_is_damaged_is_not_executed(folder: Path) -> None:
    content = file_in(folder).read_bytes()
    for damaged in (b"", content[:-1], content[:32], content[:90] + b"\xcc" + content[91:]):
        file_in(folder).write_bytes(damaged)
        assert not machine_code.load()


def test_a_file_that_others_may_write_is_not_executed(folder: Path) -> None:
    for each, mode in ((folder, 0o777), (file_in(folder), 0o666), (file_in(folder), 0o620)):
        before = each.stat().st_mode
        each.chmod(mode)
        assert not machine_code.load()
        each.chmod(before)
    assert machine_code.load()


def test_there_is_none_on_other_machines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "sparc64")
    assert machine_code.build_in_background() is None
    assert not machine_code.build()


def test_who_finds_none_has_another_process_make_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_in(folder).unlink()
    # In a folder of others, who would like to be imported.
    (tmp_path / "numba.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    thread = machine_code.build_in_background()
    assert thread is not None
    assert not validation.is_fast(), "nobody waits for it"
    thread.join(120)
    assert validation.is_fast()
    assert file_in(folder).stat().st_mode & 0o777 == 0o600
    assert machine_code.build_in_background() is None


def test_a_failure_to_make_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file_in(folder).unlink()
    monkeypatch.setattr("sys.executable", "/bin/false")
    thread = machine_code.build_in_background()
    assert thread is not None
    thread.join(120)
    assert not validation.is_fast()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


# "Fine, whatever it is", an instruction that no processor has, and numba's way to raise an exception.
WRONG_CODE = {
    "x86_64": ("31c0c3", "0f0b", "b801000000c3"),
    "aarch64": ("00008052c0035fd6", "00000000", "20008052c0035fd6"),
}


@pytest.mark.parametrize(("which", "told"), [(0, "exit status 1"), (1, "SIGILL")])
def test_code_that_is_wrong_on_this_processor_ends_only_who_made_it(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    which: int,
    told: str,
) -> None:
    file_in(folder).unlink()
    code = WRONG_CODE[platform.machine()][which]
    makes = (
        "from kafka_ds.records import machine_code as made; "
        f'made._compiled = lambda: bytes.fromhex("{code}"); made.build()'
    )
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{makes}'\n")
    script.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(script))
    thread = machine_code.build_in_background()
    assert thread is not None
    thread.join(120)
    assert not validation.is_fast()
    assert told in caplog.text
    assert not file_in(folder).exists()


def test_what_raises_is_not_taken_for_fine() -> None:
    raising = machine_code.MachineCode(bytes.fromhex(WRONG_CODE[platform.machine()][2]))
    with pytest.raises(AssertionError, match="raises nothing"):
        raising.validate(b"", raising.begin(0, 0, validation.NO_RULES, 0), is_last=True)


# Places of the state that a loop could mistake for one another.
SWAPPED = (
    ("REFUSED", "BAD_TIMESTAMPS"),
    ("BAD_TIMESTAMPS", "REFUSED"),
    ("EARLIEST", "LATEST"),
    ("LATEST", "EARLIEST"),
    ("NEEDS_KEYS", "ROOM"),
    ("TIME_SEEN", "BASE_TIME"),
)


@pytest.mark.parametrize(
    ("rule", "instead"),
    [
        ("BODY_BYTES_MIN", 7),
        ("FIELD_BYTES_MAX", 12),
        ("_INT_SHIFT_MAX", 28),
        ("_LONG_SHIFT_MAX", 63),
        ("_LONG_MAX", (1 << 62) - 1),
        ("TRUNCATED", 7),
        ("TRAILING_BYTES", 7),
        ("BAD_LENGTH", 7),
        ("BAD_DELTA", 7),
        ("BAD_FIELD", 7),
        ("wrapped", lambda number: number),
        ("_NO_TIME", -2),
        ("check_rules", lambda *_: None),
        *((name, getattr(validation_loop, other)) for name, other in SWAPPED),
    ],
)
def test_the_proof_sees_each_difference(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rule: str, instead: object
) -> None:
    assert machine_code.load()
    by_code = validation.in_use
    assert by_code is not None
    machine_code.self_test(by_code)
    monkeypatch.setattr(validation_loop, rule, instead)
    with pytest.raises(AssertionError, match="cut at"):
        machine_code.self_test(by_code)


def test_loading_takes_no_numba() -> None:
    """A broker's process stays small."""
    code = (
        "import sys; from kafka_ds.records import machine_code; assert machine_code.load(); "
        "print([m for m in ('numba', 'llvmlite', 'numpy') if m in sys.modules])"
    )
    assert machine_code.build()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
