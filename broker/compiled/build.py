"""Shell: compiles the modules of `broker.compiled.modules` for this installation and this Python, into the cache.

mypy, setuptools, a C compiler and Python's headers are needed (the extra `compiled`), and about a minute. What was
built is imported once by another process before it is kept.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from broker.compiled.build_files import (
    KIND,
    MANIFEST,
    ROOT,
    SHARED,
    Manifest,
    UnusableBuild,
    build_name,
    builds,
    check_build,
    library,
    python_build,
    source_files,
    source_sums,
    sum_of,
)
from broker.compiled.modules import MODULES
from kafka_ds.ipc.child import own_environment
from kafka_ds.records.code_folder import cache_folder

SECONDS_MAX = 1_200
# The last lines of a compiler's output say what is wrong.
LINES_SHOWN = 4
# What the extra `compiled` brings.
COMPILERS = ("mypyc", "setuptools")


class CannotCompile(Exception):
    """There is no compiler, no mypyc or no folder, or they failed; the message says what."""


def build() -> Path:
    """Compile, unless there is a usable build; its folder. Raises CannotCompile."""
    if missing := [each for each in COMPILERS if importlib.util.find_spec(each) is None]:
        raise CannotCompile(
            f"there is no {' and no '.join(missing)}: pip install 'kafka-ds[compiled]'"
        )
    with cache_folder(KIND) as folder:
        if folder is None:
            raise CannotCompile("neither the user's cache nor the temporary folder is private")
        place = Path(folder, build_name(ROOT))
        try:
            check_build(place)
        except UnusableBuild:
            with tempfile.TemporaryDirectory(prefix="new-", dir=folder) as scratch:
                _replace(_built(Path(scratch)), place)
        return place


def delete_builds() -> list[Path]:
    """Delete this installation's builds; their folders."""
    found = list(builds())
    for place in found:
        shutil.rmtree(place)
    return found


def _built(scratch: Path) -> Path:
    """A whole and tested build in the folder."""
    sources, new = scratch / "sources", scratch / "build"
    for file in source_files(ROOT):
        copy = sources / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    _run("broker.compiled.extension", new, sources)
    manifest = Manifest(
        python_build(),
        source_sums(sources),
        {name: sum_of(library(new, name)) for name in (SHARED, *MODULES)},
    )
    (new / MANIFEST).write_text(json.dumps(manifest._asdict(), indent=1))
    _run("broker.compiled.self_test", new, sources)
    return new


def _run(module: str, argument: Path, folder: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-P", "-m", module, str(argument)),
        cwd=folder,
        env=own_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        lines = done.stdout.splitlines()[-LINES_SHOWN:]
        raise CannotCompile("\n".join((f"{module} ended with status {done.returncode}:", *lines)))


def _replace(new: Path, place: Path) -> None:
    """Keep the new build; processes that have loaded the old one keep that."""
    for root, folders, files in os.walk(new):
        for name in (*folders, *files):
            Path(root, name).chmod(0o700)
    new.chmod(0o700)
    if place.exists():
        place.rename(new.with_name("old"))
    new.rename(place)
