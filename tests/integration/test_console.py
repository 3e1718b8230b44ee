"""The console of a broker in a process of its own, by HTTP and in headless Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import running_broker, wait_until

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TOPIC = "orders"


def ask(port: int, view: str, **query: object) -> Any:
    url = f"http://127.0.0.1:{port}/api/{view}?{urlencode(query)}"
    with urllib.request.urlopen(url, timeout=120) as answer:
        return json.load(answer)


def fill(bootstrap: str) -> None:
    """A topic with records, the last one hostile, and a group that is behind by two."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"segment.bytes": "1048576"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)])[TOPIC].result(120)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.size": 100_000})
    for number in range(40):
        producer.produce(TOPIC, b"x" * 90_000, key=b"%d" % number)
    producer.produce(TOPIC, HOSTILE.encode(), key=b"\xff\x00", headers={"kind": b"<b>"})
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
    found: bool = ask(port, "partition", topic=TOPIC)["tiered_end"] >= 0
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
        assert partition["lake"] == [[0, partition["tiered_end"]]]
        found = ask(free_port, "records", topic=TOPIC, offset=40)
        assert [each["value"]["text"] for each in found["records"]] == [HOSTILE, '{"order": 42}']
        (group,) = ask(free_port, "groups")
        assert (group["id"], group["lag"]) == ("billing", 2)
        assert ask(free_port, "metrics")["requests"]["Produce"]["count"] > 0


class Browser:
    """Headless Chromium, a new one for each page."""

    def __init__(self, program: str, folder: Path, port: int) -> None:
        self._command = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=12000",
            "--window-size=1280,1000",
        ]
        self._port = port
        self._folder = folder

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [*self._command, *words], capture_output=True, text=True, timeout=240, check=True
        )
        return done.stdout

    def _url(self, *parts: str) -> str:
        return f"http://localhost:{self._port}/#/" + "/".join(quote(each, "") for each in parts)

    def page(self, *parts: str) -> str:
        """The page's elements once it has drawn."""
        return self._run("--dump-dom", self._url(*parts))

    def screenshot(self, *parts: str) -> Path:
        """A picture of the page."""
        path = self._folder / ("-".join(parts) + ".png")
        self._run(f"--screenshot={path}", self._url(*parts))
        return path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_what_a_browser_shows(tmp_path: Path, free_port: int) -> None:
    with running_broker(tmp_path, settings_of(free_port)) as broker:
        fill(broker.bootstrap)
        wait_until("offsets in the lake", lambda: has_tiered_offsets(free_port))
        browser = Browser(str(shutil.which("chromium")), tmp_path, free_port)
        overview = browser.page("overview")
        assert "broker 1 · version" in overview
        assert overview.count("<polyline") == 7
        assert ">orders</a>" in browser.page("topics")
        partition = browser.page("partition", TOPIC, "0")
        assert "high watermark 42" in partition
        # The record's markup is text, and nothing of it has run.
        assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in partition
        assert "<title>kafka-ds console</title>" in partition
        assert "billing" in browser.page("groups")
        assert "console.port" in browser.page("settings")
        assert browser.screenshot("overview").read_bytes().startswith(b"\x89PNG")
        for page in (
            ("topics",),
            ("topic", TOPIC),
            ("partition", TOPIC, "0"),
            ("group", "billing"),
        ):
            browser.screenshot(*page)
