"""The demo with a tenth of the flights: every step of it checks what it shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo.__main__ import empty_folder
from tests.spark.java import QUICK_JAVA


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_ends_by_itself(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "tests.demo",
        "--flights",
        "40000",
        "--folder",
        str(tmp_path / "demo"),
    ]
    # Each query of Spark's runs once.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    done = subprocess.run(words, capture_output=True, text=True, timeout=560, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "40,000 rows = what was acknowledged" in done.stdout
    assert "40,000 rows of 26 columns" in done.stdout
    assert "How to go on" in done.stdout
    assert "Traceback" not in (tmp_path / "demo" / "broker.log").read_text()


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(SystemExit, match="not empty"):
        empty_folder(tmp_path)
    assert (tmp_path / "letters.txt").read_text() == "mine"
