"""The console of a broker in a process of its own, by HTTP and in headless Chromium."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer, Producer

from tests.browser import PROGRAM, Browser
from tests.processes import running_broker, wait_until
from tests.topics import create_topic

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TOPIC = "orders"
# Charts draw from the second sample on.
TRACES = "[...document.querySelectorAll('polyline')].filter((each) => each.points.length).length"


def ask(port: int, view: str, **query: object) -> Any:
    url = f"http://127.0.0.1:{port}/api/{view}?{urlencode(query)}"
    with urllib.request.urlopen(url, timeout=120) as answer:
        return json.load(answer)


def fill(bootstrap: str) -> None:
    """A topic with records, the last one hostile, and a group that is behind by two."""
    settings = {"segment.bytes": "1048576", "message.timestamp.after.max.ms": str(2**63 - 1)}
    create_topic(bootstrap, TOPIC, settings)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.size": 100_000})
    for number in range(40):
        producer.produce(TOPIC, b"x" * 90_000, key=b"%d" % number)
    headers = [("kind", b"<b>"), *(("more", b"") for _ in range(99))]
    producer.produce(TOPIC, HOSTILE.encode(), key=b"\xff\x00", headers=headers, timestamp=2**62)
    producer.produce(TOPIC, b'{"order": 42}', key=b"42")
    assert producer.flush(120) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    consumer.subscribe([TOPIC])
    wait_until("a share", lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()))
    (mine,) = consumer.assignment()
    mine.offset = 40
    consumer.commit(offsets=[mine], asynchronous=False)
    consumer.close()


def has_tiered_offsets(port: int) -> bool:
    found: bool = ask(port, "partition", topic=TOPIC)["highest_offset_in_remote_storage"] >= 0
    return found


def settings_of(port: int) -> dict[str, object]:
    return {"console.port": port}


def test_what_a_broker_tells(tmp_path: Path, free_port: int) -> None:
    with running_broker(tmp_path, settings_of(free_port)) as broker:
        fill(broker.bootstrap)
        assert ask(free_port, "cluster")["controller_id"] == 1
        wait_until("offsets in the lake", lambda: has_tiered_offsets(free_port))
        partition = ask(free_port, "partition", topic=TOPIC)
        assert partition["log_end_offset"] == 42
        assert partition["lake"] == [[0, partition["highest_offset_in_remote_storage"]]]
        found = ask(free_port, "records", topic=TOPIC, offset=40)
        assert [each["value"]["text"] for each in found["records"]] == [HOSTILE, '{"order": 42}']
        (group,) = ask(free_port, "groups")
        assert (group["id"], group["lag"], group["lag_in_lake"]) == ("billing", 2, 0)
        newest, *_, first = ask(free_port, "history", topic=TOPIC)
        assert (first["version"], first["operation"]) == (0, "CREATE TOPIC")
        assert newest["operation"] == "TIER"
        assert (newest["rows"] > 0, newest["files_added"] > 0) == (True, True)
        assert len(ask(free_port, "history", topic=TOPIC, limit=1)) == 1
        assert ask(free_port, "metrics")["requests"]["Produce"]["count"] > 0


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Debian's chromium")
def test_what_a_browser_shows(tmp_path: Path, free_port: int) -> None:
    with (
        running_broker(tmp_path, settings_of(free_port)) as broker,
        Browser(tmp_path / "profile") as browser,
    ):
        fill(broker.bootstrap)
        wait_until("offsets in the lake", lambda: has_tiered_offsets(free_port))
        browser.open(f"http://localhost:{free_port}/")
        browser.until("broker 1 · version")
        wait_until("a second sample", lambda: browser.value(TRACES) > 3)
        browser.screenshot(tmp_path / "overview.png")
        browser.click("nav a", "Topics")
        browser.until("Log in the lake")
        browser.click("td a", TOPIC)
        browser.until("History of its table")
        browser.until("CREATE TOPIC")
        browser.screenshot(tmp_path / "topic.png")
        browser.click("td a", "0")
        # The record's markup is text, and nothing of it has run.
        browser.until(HOSTILE)
        browser.until("… and 84 more headers")
        browser.until("4611686018427388000 ms")  # as JavaScript rounds it
        assert browser.value("document.title") == "kafka-ds console"
        assert browser.value("document.querySelector('.picture').textContent").count(
            "high watermark 42"
        )
        browser.click("input[name=at]")
        browser.type("7")
        browser.value("document.querySelector('select[name=from]').value = 'offset'")
        browser.click("input[name=limit]")
        browser.click("#read", "Read")
        browser.until("records from offset 7 on")
        browser.screenshot(tmp_path / "partition.png")
        browser.click("nav a", "Groups")
        browser.until("billing")
        browser.click("td a", "billing")
        browser.until("Members")
        browser.screenshot(tmp_path / "group.png")
        browser.click("nav a", "Settings")
        browser.until("console.port")
        assert browser.errors == []
