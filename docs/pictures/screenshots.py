"""Shell: the pictures of the web console in docs/pictures, taken in headless Chromium (Debian's package `chromium`).

Usage: ``PYTHONPATH=. python docs/pictures/screenshots.py`` runs a broker for a minute and a half, with
a producer whose rate varies.
"""

from __future__ import annotations

import json
import math
import socket
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.browser import Browser
from tests.processes import running_broker

PICTURES = Path(__file__).parent
TOPIC = "orders"
RUN_S = 90
SETTINGS = {"segment.bytes": 1 << 20, "local.retention.bytes": 3 << 20}
TOWNS = ("Lisbon", "Oslo", "Quito", "Tokyo")


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"console.port": port, "lake.max.lag.ms": 10_000}
        with running_broker(Path(folder), settings) as broker, Browser(Path(folder) / "p") as page:
            page.open(f"http://127.0.0.1:{port}/")
            produce(broker.bootstrap)
            page.screenshot(PICTURES / "console-overview.png")
            page.click("nav a", "Topics")
            page.until("Log in the lake")
            page.click("td a", TOPIC)
            page.until("History of its table")
            page.click("td a", "0")
            page.until("Where its offsets are")
            page.value("document.querySelector('input[name=limit]').value = '8'")
            page.click("#read", "Read")
            page.until("8 records from offset")
            page.screenshot(PICTURES / "console-partition.png")


def produce(bootstrap: str) -> None:
    """Records for some time, more and fewer of them, and a consumer that reads them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {name: str(value) for name, value in SETTINGS.items()}
    admin.create_topics([NewTopic(TOPIC, 2, 1, config=config)])[TOPIC].result(120)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    begun, number = time.monotonic(), 0
    while (now_s := time.monotonic() - begun) < RUN_S:
        for _ in range(int(60 + 50 * math.sin(now_s / 9) + 8 * math.sin(now_s * 2))):
            order = {"order": number, "town": TOWNS[number % 4], "total": number * 37 % 9_000 / 100}
            producer.produce(TOPIC, json.dumps(order).encode(), key=b"%d" % number)
            number += 1
        producer.poll(0)
        consumer.consume(200, 0.1)
    producer.flush(60)
    consumer.close()


if __name__ == "__main__":
    main()
