"""When a build of compiled modules may be used, and what a process does if it may not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.compiled import build_files
from broker.compiled.build_files import (
    MANIFEST,
    ROOT,
    SHARED,
    UnusableBuild,
    builds,
    check_build,
    library,
    python_build,
)
from broker.compiled.finder import OFF, SWITCH
from tests.builds import MODULE, cached_build, make_build

CHANGED = Path("kafka_ds", "module.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An installation."""
    for package in ("broker/log", "kafka_ds"):
        folder = tmp_path / "installed" / package
        folder.mkdir(parents=True)
        (folder / "module.py").write_text("answer = 42\n")
    return tmp_path / "installed"


@pytest.fixture
def build(tmp_path: Path, root: Path) -> Path:
    return make_build(tmp_path / "build", root)


def reason(build: Path, root: Path) -> str:
    with pytest.raises(UnusableBuild) as raised:
        check_build(build, root)
    return str(raised.value)


def test_a_build_of_these_sources_may_be_used(build: Path, root: Path) -> None:
    assert check_build(build, root).libraries.keys() == {SHARED, MODULE}


def test_a_source_has_changed(build: Path, root: Path) -> None:
    (root / CHANGED).write_text("answer = 43\n")
    assert reason(build, root) == f"the sources have changed since: {CHANGED}"


def test_sources_have_come_and_gone(build: Path, root: Path) -> None:
    (root / CHANGED).rename(root / "kafka_ds" / "other.py")
    assert reason(build, root) == (f"the sources have changed since: {CHANGED} and 1 more")


def test_it_is_another_pythons(build: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = python_build()
    monkeypatch.setattr(build_files, "python_build", lambda: "3.99")
    assert reason(build, root) == f"it was made for Python {made}"


@pytest.mark.parametrize("name", [SHARED, MODULE])
def test_a_library_is_damaged(build: Path, root: Path, name: str) -> None:
    file = library(build, name)
    file.write_bytes(file.read_bytes()[:-1])
    assert reason(build, root) == f"{file.name} is damaged"


def test_a_library_is_gone(build: Path, root: Path) -> None:
    library(build, MODULE).unlink()
    assert reason(build, root).startswith("it cannot be read: [Errno 2] ")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"python": 1, "sources": 2, "libraries": 3}'])
def test_its_manifest_is_none(build: Path, root: Path, content: str) -> None:
    (build / MANIFEST).write_text(content)
    assert reason(build, root)


def test_other_users_may_write_to_it(build: Path, root: Path) -> None:
    build.chmod(0o770)
    assert reason(build, root) == "other users may write to it"


def said_by_a_process(cache: Path, code: str = "pass", **environment: str) -> str:
    """What a process with this cache says of its build."""
    given = {name: value for name, value in os.environ.items() if name != SWITCH}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{code}\nfrom broker.compiled.finder import use_build; print(use_build().says)\n"
            "import broker.log.log; print(broker.log.log.__file__)",
        ],
        env={**given, "XDG_CACHE_HOME": str(cache), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    said, file = done.stdout.splitlines()
    assert file.endswith(".py"), "it runs interpreted"
    return said


def test_a_process_without_a_build_runs_interpreted(tmp_path: Path) -> None:
    said = said_by_a_process(tmp_path)
    assert said == "no modules are compiled: there is no build (kafka-ds compile makes one)"


def test_a_library_that_cannot_be_loaded_is_not_used(tmp_path: Path) -> None:
    place = cached_build(tmp_path)
    said = said_by_a_process(tmp_path)
    assert said.startswith(f"no modules are compiled: the build in {place} is not used: ")
    assert ": it cannot be loaded: " in said


def test_one_of_its_modules_has_been_imported_before(tmp_path: Path) -> None:
    """They call one another without Python, so all are compiled, or none."""
    cached_build(tmp_path)
    said = said_by_a_process(tmp_path, "import broker.log.log")
    assert said.endswith(f"is not used: {MODULE} has been imported before")


def test_it_is_switched_off(tmp_path: Path) -> None:
    cached_build(tmp_path)
    said = said_by_a_process(tmp_path, **{SWITCH: OFF})
    assert said == f"no modules are compiled: {SWITCH}={OFF}"


def test_a_build_is_found_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = cached_build(tmp_path)
    assert next(builds()) == place
