"""An environment with this checkout's wheel; the packages that it requires come from the tests' own environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "README.md", "kafka_ds", "broker", "spark_conf")


def run(*words: str | Path, cwd: Path) -> str:
    """The output of a command, which must succeed."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(folder: Path) -> Path:
    """Build the wheel and install it below ``folder``; returns the folder with the environment's programs."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("kafka_ds-*.whl")
    home = folder / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", wheel, cwd=folder)
    # The new environment sees the tests' packages by a path file. Python reads no path files in the folders that it
    # names, so the editable install of this checkout is not found.
    packages = Path(
        run(python, "-c", "import sysconfig as s; print(s.get_path('purelib'))", cwd=folder).strip()
    )
    (packages / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent
