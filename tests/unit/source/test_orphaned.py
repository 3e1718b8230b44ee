"""A stream's Python process whose driver was killed."""

from __future__ import annotations

import subprocess
import sys
import threading

from kafka_ds.source.orphaned import RUNNER, end_with_driver

# Spark's process for a stream's source, at the question where the stream begins: nobody answers on that port.
CHILD = f"""
import sys
from importlib.machinery import ModuleSpec
from kafka_ds.source.datasource import KafkaDataSource, schema_of
sys.modules["__main__"].__spec__ = ModuleSpec("{RUNNER}", None)
options = {{"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "fetchOffset.numRetries": "0",
            "kafka.default.api.timeout.ms": "20000"}}
reader = KafkaDataSource(options).streamReader(schema_of(["offset"]))
print("asks", flush=True)
try:
    reader.initialOffset()
finally:
    print("has no answer", flush=True)
"""
# A driver that does nothing but start it.
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def test_it_ends_with_its_driver_also_while_it_waits_for_brokers() -> None:
    words = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "asks\n"
        driver.kill()
        # Its own output is open as long as it lives.
        assert driver.stdout.read() == ""


def test_a_process_that_is_not_sparks_outlives_whoever_started_it() -> None:
    """As a driver does that was started in the background of a shell."""
    before = threading.active_count()
    end_with_driver()
    assert threading.active_count() == before
