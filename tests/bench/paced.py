"""A producer with a steady rate that runs during another measurement."""

from __future__ import annotations

import threading
import time

from confluent_kafka import Producer

VALUE = bytes(range(256)) * 4
STEP_S = 0.01


def paced_producer(bootstrap: str, topic: str, bytes_s: float, stop: threading.Event) -> None:
    """Produce 1 KiB records to ``topic`` at ``bytes_s`` until ``stop`` is set."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 1_000_000}
    )
    each_step = max(1, int(bytes_s * STEP_S / len(VALUE)))
    due = time.monotonic()
    while not stop.is_set():
        for _ in range(each_step):
            try:
                producer.produce(topic, VALUE)
            except BufferError:
                break
        producer.poll(0)
        due += STEP_S
        time.sleep(max(0.0, due - time.monotonic()))
    producer.flush(30)
