"""Shell: imports each module of a build; a process of `build`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from broker.compiled.build_files import check_build, library
from broker.compiled.finder import install
from broker.compiled.modules import MODULES


def main(place: Path) -> None:
    """Import all; an error ends the process."""
    install(place, check_build(place))
    for name in MODULES:
        file = importlib.import_module(name).__file__
        assert file == str(library(place, name)), f"{name} comes from {file}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
