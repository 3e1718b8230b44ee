"""Shell: the Java that Spark runs on: where Spark's launcher looks for it, and whether Spark can use it.

A Java that is missing, broken or too old ends Spark with a line about its gateway, after a while and without a path. So
it is looked at before a session starts, and the error names what was found where. The version is read from the file
that each Java has of itself; only one without such a file is run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LEAST: Final = 17
_HINT: Final = f"Spark needs Java {LEAST} or newer: install one, or set JAVA_HOME to its folder"
_ANSWER_S: Final = 30


class JavaUnusable(RuntimeError):
    """There is no Java that Spark can run on; the message names what was found, and where."""


def java_command(environment: Mapping[str, str] = os.environ) -> str:
    """The launcher: ``$JAVA_HOME/bin/java``, else ``java`` of the path.

    Raises:
        JavaUnusable: JAVA_HOME has none, or without it there is none.
    """
    home = environment.get("JAVA_HOME")
    if not home:
        found = shutil.which("java", path=environment.get("PATH"))
        if found is None:
            raise JavaUnusable(f"no Java found: JAVA_HOME is not set, and PATH has none. {_HINT}")
        return found
    launcher = Path(home) / "bin" / "java"
    if not os.access(launcher, os.X_OK):
        raise JavaUnusable(f"JAVA_HOME={home}: there is no {launcher} that can be run. {_HINT}")
    return str(launcher)


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of a Java that Spark can run on.

    Raises:
        JavaUnusable: there is none.
    """
    launcher = java_command(environment)
    home = Path(launcher).resolve().parent.parent
    version = _version_of(home) or _version_said(launcher)
    if version is None:
        raise JavaUnusable(f"{launcher} does not run, or does not say its version. {_HINT}")
    numbers = version.removeprefix("1.").split(".")  # Java 8 calls itself 1.8.0.
    if int(re.match(r"\d+", numbers[0])[0]) < LEAST:  # type: ignore[index]
        raise JavaUnusable(f"{launcher} is Java {version}. {_HINT}")
    return home


def _version_of(home: Path) -> str | None:
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d[^"]*)"', text, re.MULTILINE)
    return found[1] if found else None


def _version_said(launcher: str) -> str | None:
    try:
        said = subprocess.run(
            [launcher, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d[^"]*)"', said.stderr)
    return found[1] if found else None
