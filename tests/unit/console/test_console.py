"""The console over HTTP: what each view tells of a broker in this process, and whom it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from broker.console.records import field_of
from broker.console.server import ROWS_AT_ONCE, encoded_json
from broker.console.views import without
from kafka_ds.protocol.messages import FindCoordinatorRequest, OffsetCommitRequest
from kafka_ds.protocol.messages.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.in_process import NOW_MS, InProcess, batch_of, in_process
from tests.loops import in_loop

HOSTILE = b"<img src=x onerror=alert(1)>"


async def exchange(
    broker: InProcess, target: str, *, method: str = "GET", host: str = "localhost"
) -> tuple[str, dict[str, str], bytes]:
    """Status line, headers by their names in lower case, body."""
    console = broker.owner.console
    assert console is not None
    reader, writer = await asyncio.open_connection(*console.address)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return status.removeprefix("HTTP/1.1 "), headers, body


async def view(broker: InProcess, name: str, **query: object) -> Any:
    status, headers, body = await exchange(broker, f"/api/{name}?{urlencode(query)}")
    assert (status, headers["content-type"]) == ("200 OK", "application/json"), body
    return json.loads(body)


async def error_of(broker: InProcess, name: str, **query: object) -> tuple[str, str]:
    status, _, body = await exchange(broker, f"/api/{name}?{urlencode(query)}")
    return status, json.loads(body)["error"]


def with_broker(
    folder: Path, test: Callable[[InProcess], Awaitable[None]], **settings: object
) -> None:
    async def run() -> None:
        async with in_process(folder, console_port=0, **settings) as broker:
            await test(broker)

    asyncio.run(run())


async def commit(broker: InProcess, group: str, topic: str, topic_id: bytes, offset: int) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topics = [OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[partition])]
    async with asyncio.timeout(60):
        while True:  # until the coordinator has its log, which the first question makes
            await broker.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
            request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)
            answer = await broker.ask(request, 9)
            if not answer.topics[0].partitions[0].error_code:
                return
            await asyncio.sleep(0.05)


def test_the_cluster_and_its_brokers(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        await broker.create("orders", 3)
        told = await view(broker, "cluster")
        assert (told["node_id"], told["controller_id"]) == (7, 7)
        assert (told["topics"], told["partitions"]) == (1, 3)
        assert told["cluster_id"] == broker.node.metadata.cluster_id
        (only,) = told["brokers"]
        assert (only["rack"], only["is_controller"], only["is_fenced"]) == ("r1", True, False)
        assert only["endpoints"][0].startswith("PLAINTEXT://127.0.0.1:")

    with_broker(tmp_path, test, node_id=7, broker_rack="r1")


def test_topics_with_offsets_sizes_and_settings(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        await broker.create("orders", 2, retention_ms=4_000_000)
        await broker.produce("orders", batch_of([b"a", b"b"]))
        (row,) = await view(broker, "topics")
        assert (row["name"], row["partitions"], row["replicas"]) == ("orders", 2, 1)
        assert (row["under_replicated"], row["offline"], row["lake_bytes"]) == (0, 0, None)
        assert row["local_bytes"] > 0
        topic = await view(broker, "topic", topic="orders")
        first, second = topic["partitions"]
        assert (first["leader"], first["isr"], first["replicas"]) == (1, [1], [1])
        assert first["preferred_leader"] == 1
        names = ("log_start_offset", "last_stable_offset", "high_watermark", "log_end_offset")
        assert [first[name] for name in names] == [0, 2, 2, 2]
        assert second["log_end_offset"] == 0
        settings = {each["name"]: each for each in topic["settings"]}
        assert settings["retention.ms"]["value"] == "4000000"
        assert settings["retention.ms"]["origin"] == "TOPIC"
        assert settings["segment.ms"]["origin"] == "DEFAULT"
        assert await error_of(broker, "topic", topic="other") == (
            "404 Not Found",
            "there is no topic other",
        )

    with_broker(tmp_path, test)


@in_loop
async def test_long_answers_let_clients_through() -> None:
    rows = [{"name": "ä\0", "at": [number, None]} for number in range(2 * ROWS_AT_ONCE + 1)]
    for content in ([], {}, {"a": 1}, rows, {"rows": rows, "none": None, "some": rows[:2]}):
        encoding = asyncio.ensure_future(encoded_json(content))
        await asyncio.sleep(0)
        assert encoding.done() == ("name" not in str(content))
        assert json.loads(await encoding) == content


def test_the_way_of_a_partition(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        await broker.create("orders")
        await broker.produce("orders", batch_of([b"a", b"b"]))
        replica = broker.node.replica_manager.get("orders", 0)
        replica.log.roll()
        await broker.produce("orders", batch_of([b"c"]))
        told = await view(broker, "partition", topic="orders", partition=0)
        assert [(s["base_offset"], s["next_offset"]) for s in told["segments"]] == [(0, 2), (2, 3)]
        assert [s["is_active"] for s in told["segments"]] == [False, True]
        assert (told["lake"], told["gaps"], told["highest_offset_in_remote_storage"]) == (
            [],
            [],
            None,
        )
        assert (await error_of(broker, "partition", topic="orders", partition=9))[1] == (
            "orders has no partition 9"
        )
        assert (await error_of(broker, "partition", topic="orders", partition="x"))[0] == (
            "400 Bad Request"
        )

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    ("start", "end", "gaps", "ranges"),
    [
        (0, 9, [], [[0, 9]]),
        (0, -1, [], []),
        (0, 9, [(3, 4)], [[0, 2], [5, 9]]),
        (4, 9, [(0, 5), (9, 9)], [[6, 8]]),
        (0, 9, [(6, 7), (1, 2)], [[0, 0], [3, 5], [8, 9]]),
    ],
)
def test_ranges_end_at_gaps(
    start: int, end: int, gaps: list[tuple[int, int]], ranges: list[list[int]]
) -> None:
    assert list(without(start, end, gaps)) == ranges


def test_records_by_offset_and_by_time(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        await broker.create("orders")
        await broker.produce("orders", batch_of([HOSTILE, None, b"\xff\x00", b"d", b"e"]))
        told = await view(broker, "records", topic="orders", offset=0, limit=3)
        assert [each["offset"] for each in told["records"]] == [0, 1, 2]
        assert (told["offset"], told["next_offset"], told["last_stable_offset"]) == (0, 3, 5)
        values = [each["value"] for each in told["records"]]
        assert values[0] == {"text": HOSTILE.decode(), "hex": False, "size": len(HOSTILE)}
        assert values[1] is None
        assert values[2] == {"text": "ff00", "hex": True, "size": 2}
        told = await view(broker, "records", topic="orders", timestamp=NOW_MS + 3)
        assert [each["offset"] for each in told["records"]] == [3, 4]
        told = await view(broker, "records", topic="orders", limit=1)
        assert [each["value"]["text"] for each in told["records"]] == ["e"]
        told = await view(broker, "records", topic="orders", timestamp=NOW_MS + 99)
        assert (told["records"], told["offset"]) == ([], 5)
        told = await view(broker, "records", topic="orders", offset=99)
        assert told["records"] == []
        for wrong in ("-1", "x", str(2**63), "1" * 5000):
            for name in ("timestamp", "offset", "limit"):
                status, told = await error_of(broker, "records", topic="orders", **{name: wrong})
                assert status == "400 Bad Request"
                assert told.startswith(f"{name}={wrong[:50]} is not a non-negative number")

    with_broker(tmp_path, test)


def test_of_large_records_the_last_ones(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        await broker.create("orders")
        for number in range(5):
            await broker.produce("orders", batch_of([b"%d" % number * 400_000]))
        told = await view(broker, "records", topic="orders", limit=5)
        assert [each["offset"] for each in told["records"]] == [3, 4]
        assert [each["value"]["size"] for each in told["records"]] == [400_000, 400_000]

    with_broker(tmp_path, test)


def test_bytes_in_words() -> None:
    assert field_of("ä".encode() * 8, 100) == {"text": "ä" * 8, "hex": False, "size": 100}
    # Cut off within a character.
    assert field_of("xä".encode()[:-1], 100) == {"text": "x", "hex": False, "size": 100}
    assert field_of(b"\xff" * 5, 6) == {"text": "ff" * 5, "hex": True, "size": 6}
    assert field_of(b"a\xc3", 2) == {"text": "61c3", "hex": True, "size": 2}
    assert field_of(b"", 0) == {"text": "", "hex": False, "size": 0}


def test_groups_with_lag(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        topic_id = await broker.create("orders")
        await broker.produce("orders", batch_of([b"a", b"b", b"c"]))
        assert await view(broker, "groups") == []
        await commit(broker, "a/<b>", "orders", topic_id, 1)
        (row,) = await view(broker, "groups")
        assert (row["id"], row["state"], row["partitions"], row["lag"]) == ("a/<b>", "Empty", 1, 2)
        group = await view(broker, "group", group="a/<b>")
        assert group["members"] == []
        assert group["offsets"] == [
            {
                "topic": "orders",
                "partition": 0,
                "committed_offset": 1,
                "end_offset": 3,
                "lag": 2,
                "lag_in_lake": None,
            }
        ]
        assert (await error_of(broker, "group", group="b"))[0] == "404 Not Found"

    with_broker(tmp_path, test, offsets_topic_num_partitions=1)


def test_settings_and_metrics(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        await broker.create("orders")
        await broker.produce("orders", batch_of([b"a", b"b"]))
        settings = {each["name"]: each for each in await view(broker, "settings")}
        assert settings["console.port"]["origin"] == "STATIC_BROKER"
        assert settings["console.host"]["origin"] == "DEFAULT"
        secret = settings["ssl.keystore.password"]
        assert (secret["is_secret"], secret["value"]) == (True, None)
        metrics = await view(broker, "metrics")
        assert metrics["topics"]["kafka_server_brokertopicmetrics_messagesin_total"] == 2
        assert metrics["topics"]["kafka_server_brokertopicmetrics_bytesin_total"] > 0
        assert "kafka_server_brokertopicmetrics_bytesout_total" in metrics["topics"]
        produce = metrics["requests"]["Produce"]
        assert produce["count"] == 1
        assert produce["seconds"] > 0

    with_broker(tmp_path, test, ssl_keystore_password="hidden")


def test_the_page_loads_nothing_but_its_own_files(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        for path, kind in (("/", "html"), ("/console.css", "css"), ("/console.js", "javascript")):
            status, headers, body = await exchange(broker, path)
            assert (status, headers["content-type"]) == ("200 OK", f"text/{kind}; charset=utf-8")
            assert headers["content-security-policy"].startswith("default-src 'none';")
            assert headers["x-content-type-options"] == "nosniff"
            assert b"://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
            for unsafe in (b"innerHTML", b"insertAdjacentHTML", b"eval(", b"style="):
                assert unsafe not in body

    with_broker(tmp_path, test)


def test_it_only_reads(tmp_path: Path) -> None:
    async def test(broker: InProcess) -> None:
        for method in ("POST", "PUT", "DELETE"):
            status, _, _ = await exchange(broker, "/api/topics", method=method)
            assert status == "405 Method Not Allowed"
        for path in ("/api/", "/topics", "/api/../etc/passwd", "/console.py"):
            assert (await exchange(broker, path))[0] == "404 Not Found"

    with_broker(tmp_path, test)


def test_a_foreign_name_is_refused(tmp_path: Path) -> None:
    """A page of evil.example whose name comes to mean 127.0.0.1 reads nothing."""

    async def test(broker: InProcess) -> None:
        for host in ("localhost:9000", "127.0.0.1:9000", "[::1]:9000", "127.0.0.1", "LOCALHOST"):
            assert (await exchange(broker, "/api/cluster", host=host))[0] == "200 OK"
        for host in ("evil.example", "evil.example:9000", "localhost.evil.example", ""):
            for path in ("/", "/api/cluster"):
                status, _, body = await exchange(broker, path, host=host)
                assert status == "421 Misdirected Request"
                assert b"cluster_id" not in body

    with_broker(tmp_path, test)


@in_loop
async def test_it_is_off_by_default(tmp_path: Path) -> None:
    async with in_process(tmp_path) as broker:
        assert broker.owner.console is None
