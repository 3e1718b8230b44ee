"""What unit tests may ask for beside the rest: a folder that costs no fsync."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the machine has one: real files, whose fsyncs wait for no disk.

    A broker's start and stop are some forty of them, and a few hundred tests start one each.
    """
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
