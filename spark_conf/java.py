"""Shell: finds the Java that Spark's launcher would use, and checks its version.

With a missing, broken or old Java, Spark fails after a while, and its error about the gateway names no path. So this is
checked before a session starts. The version is in Java's `release` file; Java is only run if it has no such file.
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
    """Spark cannot run on the Java that was found, or there is none; the message names its path."""


def java_command(environment: Mapping[str, str] = os.environ) -> str:
    """The launcher: ``$JAVA_HOME/bin/java``, or ``java`` in PATH if JAVA_HOME is not set.

    Raises:
        JavaUnusable: there is none.
    """
    home = environment.get("JAVA_HOME")
    if not home:
        found = shutil.which("java", path=environment.get("PATH"))
        if found is None:
            raise JavaUnusable(f"no Java found: JAVA_HOME is not set, and PATH has none. {_HINT}")
        return found
    launcher = Path(home) / "bin" / "java"
    if not os.access(launcher, os.X_OK):
        raise JavaUnusable(f"JAVA_HOME={home}: {launcher} is missing or not executable. {_HINT}")
    return str(launcher)


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The home folder of a Java that Spark can run on.

    Raises:
        JavaUnusable: there is none.
    """
    launcher = java_command(environment)
    home = Path(launcher).resolve().parent.parent
    version = _release_version(home) or _printed_version(launcher)
    if version is None:
        raise JavaUnusable(f"{launcher} does not run, or does not print its version. {_HINT}")
    numbers = version.removeprefix("1.").split(".")  # Java 8's version is 1.8.0.
    if int(re.match(r"\d+", numbers[0])[0]) < LEAST:  # type: ignore[index]
        raise JavaUnusable(f"{launcher} is Java {version}. {_HINT}")
    return home


def _release_version(home: Path) -> str | None:
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d[^"]*)"', text, re.MULTILINE)
    return found[1] if found else None


def _printed_version(launcher: str) -> str | None:
    try:
        done = subprocess.run(
            [launcher, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d[^"]*)"', done.stderr)
    return found[1] if found else None
