"""Shell: a build of compiled modules: where it is, what it was made from, and whether it may be used.

- A build belongs to one installation and one Python; `manifest.json` has the checksums of all sources and libraries.
- It is used only if each of them is the same, and no other user may write to it (`kafka_ds.records.code_folder`).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from kafka_ds.records.code_folder import private_folders

ROOT = Path(__file__).resolve().parents[2]
# mypyc reads constants and types of other modules, too: each source of these counts.
PACKAGES = ("broker", "kafka_ds")
MANIFEST = "manifest.json"
KIND = "compiled"
# The library with the code of all modules; those of the modules only call it.
SHARED = "kafka_ds_compiled__mypyc"


class UnusableBuild(Exception):
    """The build must not be used; the message says why."""


class Manifest(NamedTuple):
    """What a build was made from, and what it has."""

    python: str
    sources: Mapping[str, str]
    """The SHA-256 of each source, by its path below the installation."""
    libraries: Mapping[str, str]
    """The SHA-256 of each library, by the name of its module."""


def python_build() -> str:
    """The Python that compiled modules depend on."""
    return f"{sys.version} on {sysconfig.get_platform()}"


def library(place: Path, module: str) -> Path:
    """The file of a module in a build, whose folders are its packages: mypyc sets `__file__` so."""
    return place / (module.replace(".", "/") + EXTENSION_SUFFIXES[0])


def build_name(root: Path) -> str:
    """The folder of the build of an installation by this Python."""
    installation = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return f"{installation}-{sys.implementation.cache_tag}"


def source_files(root: Path) -> Iterator[Path]:
    """Each source that a compiled module may depend on."""
    for package in PACKAGES:
        for folder, _, files in os.walk(root / package):
            yield from (Path(folder, each) for each in files if each.endswith(".py"))


def source_sums(root: Path) -> dict[str, str]:
    """The SHA-256 of each source, by its path below `root`."""
    return {each.relative_to(root).as_posix(): sum_of(each) for each in source_files(root)}


def sum_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def builds(root: Path = ROOT) -> Iterator[Path]:
    """The folders of this installation's builds; the preferred one first."""
    for folder in private_folders(KIND):
        place = Path(folder, build_name(root))
        if place.exists():
            yield place


def check_build(place: Path, root: Path = ROOT) -> Manifest:
    """The manifest of a build that may be used; UnusableBuild otherwise."""
    try:
        status = place.lstat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnusableBuild("other users may write to it")
        manifest = Manifest(**json.loads((place / MANIFEST).read_bytes()))
        if manifest.python != python_build():
            raise UnusableBuild(f"it was made for Python {manifest.python}")
        _check_sources(manifest.sources, source_sums(root))
        for module, expected in manifest.libraries.items():
            if sum_of(library(place, module)) != expected:
                raise UnusableBuild(f"{library(place, module).name} is damaged")
        return manifest
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UnusableBuild(f"it cannot be read: {error}") from error


def _check_sources(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    changed = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UnusableBuild(f"the sources have changed since: {changed[0]}{more}")
