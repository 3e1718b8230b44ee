"""What a user sees on the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.topics import Topic

ROOT = Path(__file__).resolve().parent.parent.parent


def test_who_asks_for_a_few_rows_gets_no_traceback(topic: Topic) -> None:
    # More than sockets hold: Spark stops in the midst of them.
    topic.create(partitions=1).produce(3000, size=1000, partitions=1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.terminal_driver", topic.broker.bootstrap, topic.name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
