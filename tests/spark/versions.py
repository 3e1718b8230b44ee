"""Source, sink and typed tables with PySparks that are not pinned: ``python -m tests.spark.versions 4.1.4 4.0.5``.

Each has an environment of its own below ``.cache``, with PySpark in it; everything else is this one's, and so is its
own PySpark. What is too old has to say so; with the others the tests run that need nothing newer.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path

from kafka_ds.source.pyspark_version import LEAST

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = (
    "batch", "scan", "catalog", "session", "stream", "sink", "secured", "versions", "terminal", "altered_tables",
    "compacted", "views", "spark_process",
)  # fmt: skip
# Typed tables of each format, by the command: slow, and only once.
PIPELINES = "pipelines_once"
REGISTER = "import kafka_ds; kafka_ds.register"


def environment(version: str) -> Path:
    """The interpreter of this PySpark's environment, which is made if need be."""
    if metadata.version("pyspark") == version:
        return Path(sys.executable)
    folder = ROOT / ".cache" / f"pyspark-{version}-python-{sysconfig.get_python_version()}"
    python = folder / "bin" / "python"
    if (folder / ".installed").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    own = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # Behind its own packages, so that its PySpark is found first.
    (Path(own) / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile",
        "--ignore-installed", "--config-settings=--build-option=--compression=stored",
    ]  # fmt: skip
    subprocess.run([*pip, f"pyspark=={version}"], check=True)
    (folder / ".installed").touch()
    return python


def is_refused(python: Path, version: str) -> bool:
    """Whether a PySpark that is too old is told so in one line."""
    done = subprocess.run(
        [python, "-c", REGISTER], cwd=ROOT, capture_output=True, text=True, check=False
    )
    said = done.stderr.strip().splitlines()[-1:]
    print(*said)
    wanted = f"kafka-ds needs PySpark {LEAST[0]}.{LEAST[1]} or newer, this is {version}"
    return done.returncode != 0 and said == [f"ImportError: {wanted}"]


def passes(python: Path, version: tuple[int, ...]) -> bool:
    """Whether the tests pass that need nothing newer."""
    wanted = "not slow" if version >= (4, 2) else "not slow and not spark_4_2"
    runs = [["-m", wanted, *map(_file, TESTS)], [_file(PIPELINES)]]
    ended = [
        subprocess.run([python, "-m", "pytest", *words], cwd=ROOT, check=False).returncode
        for words in runs
    ]
    return not any(ended)


def _file(name: str) -> str:
    return f"tests/spark/test_{name}.py"


def main() -> int:
    failed: list[str] = []
    for version in sys.argv[1:]:
        python = environment(version)
        began = time.monotonic()
        numbers = tuple(int(part) for part in version.split(".")[:2])
        too_old = numbers < LEAST
        good = is_refused(python, version) if too_old else passes(python, numbers)
        what = "refused by register" if too_old else "tests"
        print(f"PySpark {version}: {what}: {'good' if good else 'BAD'}, "
              f"{time.monotonic() - began:.0f} s")  # fmt: skip
        if not good:
            failed.append(version)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
