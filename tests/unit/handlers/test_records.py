"""DeleteRecords: where a partition begins afterwards, for every reader and after a crash."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.log.directories import directory
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DeleteRecordsRequest, ListOffsetsRequest
from kafka_ds.protocol.messages.offsets import EARLIEST, ListOffsetsPartition
from kafka_ds.protocol.messages.topics import DeleteRecordsPartition
from tests.in_process import InProcess, batch_of, in_process, records_of
from tests.loops import in_loop, until
from tests.requests import build


async def delete(
    broker: InProcess, topic: str, offset: int, partition: int = 0, version: int = 2
) -> Any:
    wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = build(
        DeleteRecordsRequest, topics=[{"name": topic, "partitions": [wanted]}], timeout_ms=1000
    )
    (answer,) = (await broker.ask(request, version)).topics
    assert answer.name == topic
    return answer.partitions[0]


async def earliest(broker: InProcess, topic: str) -> int:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)
    request = build(
        ListOffsetsRequest, replica_id=-1, topics=[{"name": topic, "partitions": [wanted]}]
    )
    offset: int = (await broker.ask(request, 7)).topics[0].partitions[0].offset
    return offset


@pytest.mark.parametrize("version", range(3))
@in_loop
async def test_what_lies_below_is_out_of_range(memory_path: Path, version: int) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        for value in (b"a", b"b", b"c"):
            await broker.produce("t", batch_of([value, value]))
        answer = await delete(broker, "t", 4, version=version)
        assert (answer.error_code, answer.low_watermark) == (0, 4)
        assert await earliest(broker, "t") == 4
        assert (await broker.fetch("t", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        data = await broker.fetch("t", 4)
        assert data.log_start_offset == 4
        assert [(r.offset, r.value) for r in records_of(data.records)] == [(4, b"c"), (5, b"c")]
        again = await delete(broker, "t", 1)
        assert (again.error_code, again.low_watermark) == (0, 4)


@in_loop
async def test_minus_one_is_the_high_watermark(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
        assert (await delete(broker, "t", -1)).low_watermark == 2
        assert (await broker.produce("t", batch_of([b"c"]))).base_offset == 2
        assert [r.value for r in records_of((await broker.fetch("t", 2)).records)] == [b"c"]


@in_loop
async def test_nobody_else_waits_for_its_disk(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
        disk_is_quick = threading.Event()
        write = directory.replace

        def slow(*words: Any, **more: Any) -> None:
            assert disk_is_quick.wait(120), "whoever could make it quick is kept waiting"
            write(*words, **more)

        monkeypatch.setattr(directory, "replace", slow)
        deleting = asyncio.ensure_future(delete(broker, "t", 1))
        while await earliest(broker, "t") != 1:
            await asyncio.sleep(0)
        assert not deleting.done(), "it is not durable yet"
        disk_is_quick.set()
        assert (await deleting).low_watermark == 1


@in_loop
async def test_a_disk_that_fails_is_a_storage_error(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))

        def fails(*words: Any, **more: Any) -> None:
            raise OSError("no space left")

        with monkeypatch.context() as patched:
            patched.setattr(directory, "replace", fails)
            answer = await delete(broker, "t", 1)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await delete(broker, "t", 1)).low_watermark == 1, "and asked again it is written"


@in_loop
async def test_a_full_directory_refuses_for_its_own_partitions_alone(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = [str(memory_path / name) for name in ("one", "two")]
    async with in_process(memory_path, log_dirs=",".join(dirs)) as broker:
        await broker.create("t", 2)
        for index in range(2):
            await broker.produce("t", batch_of([b"a", b"b"]), partition=index)
        write = directory.replace

        def fails(disk: Any, path: str, *words: Any, **more: Any) -> None:
            if path.startswith(dirs[1]):
                raise OSError("no space left")
            write(disk, path, *words, **more)

        both = [DeleteRecordsPartition(partition_index=index, offset=1) for index in range(2)]
        request = build(DeleteRecordsRequest, name="t", partitions=both, timeout_ms=1000)
        with monkeypatch.context() as patched:
            patched.setattr(directory, "replace", fails)
            answers = (await broker.ask(request, 2)).topics[0].partitions
        told = {
            broker.node.replica_manager.get("t", each.partition_index).log.directory: (
                each.error_code,
                each.low_watermark,
            )
            for each in answers
        }
        assert {folder.rpartition("/")[0]: answer for folder, answer in told.items()} == {
            dirs[0]: (ErrorCode.NONE, 1),
            dirs[1]: (ErrorCode.KAFKA_STORAGE_ERROR, -1),
        }


@in_loop
async def test_a_crash_does_not_take_it_back(memory_path: Path) -> None:
    """The folder as a killed broker would leave it, as soon as the answer is there."""
    async with in_process(memory_path / "one") as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b", b"c"]))
        await delete(broker, "t", 2)
        shutil.copytree(memory_path / "one", memory_path / "two")
    (memory_path / "two" / "log" / ".lock").unlink(missing_ok=True)
    async with in_process(memory_path / "two") as broker:
        await until(lambda: not broker.node.replica_manager.is_recovering)
        assert await earliest(broker, "t") == 2
        assert (await broker.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "code"),
    [
        ("t", 0, 3, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t", 0, -2, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t", 5, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
@in_loop
async def test_refusals(
    memory_path: Path, topic: str, partition: int, offset: int, code: ErrorCode
) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        await broker.produce("t", batch_of([b"a", b"b"]))
        answer = await delete(broker, topic, offset, partition)
        assert (answer.error_code, answer.low_watermark) == (code, -1)
        assert await earliest(broker, "t") == 0


@in_loop
async def test_a_topic_that_deletes_nothing_keeps_its_records(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t", cleanup_policy="compact")
        await broker.produce("t", batch_of([b"a", b"b"]))
        assert (await delete(broker, "t", 1)).error_code == ErrorCode.POLICY_VIOLATION
        assert await earliest(broker, "t") == 0
