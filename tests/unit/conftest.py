"""Fixtures for unit tests: a folder in which fsync costs nothing, a store, a disk."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ds.delta.store.local import LocalStore
from tests.fakes.memory_disk import MemoryDisk

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if the machine has one: real files, whose fsyncs do not wait for a disk.

    A broker's start and stop take about forty fsyncs, and a few hundred tests start a broker.
    """
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A folder."""
    return LocalStore(str(tmp_path))


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()
