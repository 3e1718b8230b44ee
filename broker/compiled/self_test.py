"""Shell: imports each module of a build, and all that a broker imports with them; a process of `build`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from broker.compiled.build_files import check_build, library
from broker.compiled.finder import install
from broker.compiled.modules import MODULES

# Names alone: this package knows nothing of those above it.
PROGRAM = ("broker.commands", "broker.broker_server", "broker.read_replica.server")


def main(place: Path) -> None:
    """Import all; an error ends the process."""
    install(place, check_build(place))
    for name in MODULES:
        file = importlib.import_module(name).__file__
        assert file == str(library(place, name)), f"{name} comes from {file}"
    for name in PROGRAM:
        importlib.import_module(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
