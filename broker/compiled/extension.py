"""Shell: the modules of a source tree as libraries, by mypyc and the C compiler; a process of `build`.

`python -m broker.compiled.extension LIBRARIES` is run in a copy of the sources, since mypyc writes what it generates
and caches below its working directory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from broker.compiled.build_files import SHARED
from broker.compiled.modules import MODULES


def main(libraries: Path) -> None:
    """Compile; a compiler's errors go to its output, and end the process."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CompileError

    # Types of other packages are of no use to it, and no two environments have the same; what modules that are not
    # compiled make of them does not matter here.
    options = (
        *("--config-file=", "--cache-dir=mypy-cache", "--follow-imports=silent"),
        *("--no-site-packages", "--ignore-missing-imports"),
    )
    files = [f"{name.replace('.', '/')}.py" for name in MODULES]
    extensions = mypycify(
        [*options, *files],
        group_name=SHARED.removesuffix("__mypyc"),
        target_dir="generated",
        debug_level="0",
    )
    command: Any = build_ext(Distribution({"name": "compiled", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(libraries), "objects"
    command.ensure_finalized()
    try:
        command.run()
    except CompileError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
