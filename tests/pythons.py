"""The unit tests, and those of source and sink, with other Pythons: ``python -m tests.pythons 3.12 3.13``.

Each has an environment of its own below ``.cache`` with every pinned package. An interpreter is taken from PATH, else
from pyenv; a version of which there is none is a failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
# What a process of a broker or of Spark would compile at its first start.
KERNELS = (
    "from broker.cleaner.loops import loops; from kafka_ds.topic.files import pages; "
    "from kafka_ds.sink import batches as sink; from kafka_ds.records import kernel; "
    "kernel.warm_up(); loops(); pages.loops(); sink.loops()"
)


def interpreter(version: str) -> str | None:
    """A Python of this version that runs."""
    names = [shutil.which(f"python{version}"), *PYENV.glob(f"versions/{version}.*/bin/python")]
    for name in filter(None, names):
        tried = subprocess.run([name, "-c", ""], capture_output=True, check=False)
        if (
            tried.returncode == 0
        ):  # pyenv has a `python3.12` on PATH that only says it is not chosen.
            return str(name)
    return None


def environment(version: str, python: str) -> Path:
    """The interpreter of the environment of this Python, which is made if need be."""
    folder = ROOT / ".cache" / f"python-{version}"
    made = folder / "bin" / "python"
    wanted = (ROOT / "requirements.txt").read_text()
    stamp = folder / ".installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        pip = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # PySpark has no wheel and is built; compressing it would take as long again.
        stored = "--config-settings=--build-option=--compression=stored"
        subprocess.run([*pip, stored, "-r", ROOT / "requirements.txt"], check=True)
        subprocess.run([*pip, "--editable", ROOT], check=True)
        stamp.write_text(wanted)
    subprocess.run([made, "-c", KERNELS], cwd=ROOT, check=True)
    subprocess.run([made, "-m", "kafka_ds.records.machine_code"], cwd=ROOT, check=True)
    return made


def passes(version: str, sparks: list[str]) -> bool:
    """Whether this Python's tests pass; all of them run."""
    found = interpreter(version)
    if found is None:
        print(f"Python {version}: none found on PATH or below {PYENV}")
        return False
    python = environment(version, found)
    unit = [python, "-m", "pytest", "-m", "not slow", "-n", "2", "--dist", "loadfile", "tests/unit"]
    spark = [python, "-m", "tests.spark.versions", *sparks]
    good = [subprocess.run(words, cwd=ROOT, check=False).returncode == 0 for words in (unit, spark)]
    return all(good)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pythons")
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--sparks", nargs="+", default=["4.2.0", "4.1.4"])
    asked = parser.parse_args()
    failed = []
    for version in asked.versions:
        began = time.monotonic()
        good = passes(version, asked.sparks)
        took = time.monotonic() - began
        print(f"Python {version}: {'good' if good else 'BAD'}, {took:.0f} s", flush=True)
        if not good:
            failed.append(version)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
