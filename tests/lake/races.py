"""Processes that commit to the same tables at once (tests/lake/racer.py), started and let go together."""

import subprocess
import sys
from contextlib import contextmanager


def start(store, what, name, count):
    command = [sys.executable, "-m", "tests.lake.racer", store.uri(""), what, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def racers(store, *entries):
    """Start processes, wait until all are ready, and let them go at once."""
    running = [start(store, *entry) for entry in entries]
    try:
        for each in running:
            assert each.stdout.readline() == "ready\n"
        store.put_durable("go", b"")
        yield running
    finally:
        for each in running:
            each.kill()
            each.wait()
            each.stdout.close()


def outputs(running):
    found = [each.communicate(timeout=120)[0].split("\n")[:-1] for each in running]
    assert [each.returncode for each in running] == [0] * len(running)
    return found
