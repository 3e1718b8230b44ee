"""Runs the broker's image without an argument, in this process's network, and uses it as a client on the host does.

python -m tests.image.in_a_namespace COMMAND…: the command that runs the container. Prints the broker's output and ends
with status 0 if all held. The ports are the image's own, so it runs in a network namespace that nobody else is in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer

BOOTSTRAP = "localhost:9092"
COUNT = 100
READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


def broker_below(pid: int) -> int:
    """The process of the broker below a process of buildah's, any of whose threads may have made it; 0 for none."""
    lists = [each.read_text().split() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    for child in (int(text) for children in lists for text in children):
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if words[1:3] == [b"-m", b"broker"]:
            return child
        if found := broker_below(child):
            return found
    return 0


class Container:
    """The running container; what it prints is read to the end."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self.printed: list[str] = []
        for line in self.process.stdout:
            self.printed.append(line)
            if line.startswith("ready "):
                return
        raise AssertionError("".join(self.printed))

    def stop(self) -> None:
        """SIGTERM to the broker, as a container engine sends it to the container's first process."""
        broker = broker_below(self.process.pid)
        assert broker, "no broker runs in the container"  # and signals to 0 go to everybody
        os.kill(broker, signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=STOP_TIMEOUT_S)
        self.printed.append(rest)
        assert self.process.returncode == 0, "".join(self.printed)


def produce() -> None:
    producer = Producer({"bootstrap.servers": BOOTSTRAP})
    for number in range(COUNT):
        producer.produce("orders", value=b"%d" % number)
    assert producer.flush(30) == 0


def consume() -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": BOOTSTRAP, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(found) < COUNT and time.monotonic() < deadline:
        found += [
            bytes(message.value() or b"")
            for message in consumer.consume(COUNT, 1)
            if not message.error()
        ]
    consumer.close()
    return found


def main(command: list[str]) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    container = Container(command)
    produce()
    metrics = urllib.request.urlopen("http://localhost:9404/metrics", timeout=10).read()
    assert b"kafka_server" in metrics
    container.stop()
    # Its data are on the volume.
    again = Container(command)
    assert sorted(consume()) == sorted(b"%d" % number for number in range(COUNT))
    again.stop()
    print("".join([*container.printed, *again.printed]))


if __name__ == "__main__":
    main(sys.argv[1:])
