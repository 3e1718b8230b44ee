"""Shell: lets this process import the compiled modules of this installation, if there is a usable build.

- All or none: compiled modules call one another without Python, so one of them cannot be replaced by its source.
- `use_build` comes before the first import of any of them. Only brokers call it: workers and cleaners do not need it.
- Whatever is wrong with a build, the broker runs interpreted, and says why.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

from broker.compiled.build_files import (
    SHARED,
    Manifest,
    UnusableBuild,
    builds,
    check_build,
    library,
)

SWITCH = "KAFKA_DS_COMPILED"
OFF = "off"


class UsedBuild(NamedTuple):
    """What this process runs: how many modules are compiled, and if none, why."""

    modules: int
    reason: str = ""
    is_fault: bool = False
    """Whether there is a build that cannot be used."""

    @property
    def says(self) -> str:
        """One line for the log."""
        if self.modules:
            return f"{self.modules} modules are compiled"
        return f"no modules are compiled: {self.reason}"


class CompiledFinder(MetaPathFinder):
    """Finds the modules of a build, before their sources are found."""

    def __init__(self, place: Path, manifest: Manifest) -> None:
        self._place = place
        self._modules = manifest.libraries.keys()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        file = str(library(self._place, fullname))
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))


@functools.cache
def use_build() -> UsedBuild:
    """Import compiled modules from now on, if that is possible; the first answer holds for the process."""
    if os.environ.get(SWITCH) == OFF:
        return UsedBuild(0, f"{SWITCH}={OFF}")
    place = next(builds(), None)
    if place is None:
        return UsedBuild(0, "there is no build (kafka-ds compile makes one)")
    try:
        manifest = check_build(place)
        install(place, manifest)
    except UnusableBuild as error:
        return UsedBuild(0, f"the build in {place} is not used: {error}", is_fault=True)
    return UsedBuild(len(manifest.libraries) - 1)


def install(place: Path, manifest: Manifest) -> None:
    """Let this build's modules be found first; UnusableBuild if its library cannot be loaded, or it is too late."""
    if loaded := sorted(manifest.libraries.keys() & sys.modules.keys()):
        raise UnusableBuild(f"{loaded[0]} has been imported before")
    finder = CompiledFinder(place, manifest)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(SHARED)
    except ImportError as error:
        sys.meta_path.remove(finder)
        raise UnusableBuild(f"it cannot be loaded: {error}") from error
