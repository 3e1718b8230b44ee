"""Settings of the tier's worker that change while it runs."""

from pathlib import Path

from broker.worker.rpc import ReadTieredState
from kafka_ds.protocol.errors import ErrorCode
from tests.in_process import batch_of, in_process
from tests.loops import in_loop, until
from tests.unit.handlers.config_requests import BROKER, SET, change

THREADS = "remote.log.reader.threads"
RATE = "remote.log.manager.copy.max.bytes.per.second"
CACHE = "remote.log.index.file.cache.total.size.bytes"


@in_loop
async def test_a_running_worker_gets_more_threads_and_the_next_one_has_them(tmp_path: Path) -> None:
    async with in_process(tmp_path, remote_log_storage_system_enable="true") as broker:
        manager = broker.node.remote_log_manager
        assert manager is not None
        worker = manager.worker
        assert await worker.send(ReadTieredState(partitions=[])) == []
        pid = worker.pid
        before = threads_of(pid)
        for name, text in ((THREADS, "4"), (CACHE, "1000")):
            assert (await change(broker, BROKER, "", (name, SET, text))).error_code == 0
        await until(lambda: threads_of(pid) == before + 2)
        assert await worker.send(ReadTieredState(partitions=[])) == []
        assert (worker.pid, worker.deaths) == (pid, 0)
        answer = await change(broker, BROKER, "", (THREADS, SET, "9"))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "more than double the present value, 4" in answer.error_message


@in_loop
async def test_copies_to_the_lake_wait_for_a_rate_that_is_set_while_it_runs(tmp_path: Path) -> None:
    settings = {
        "remote_log_storage_system_enable": "true",
        "remote_log_manager_task_interval_ms": 100,
    }
    async with in_process(tmp_path, **settings) as broker:
        manager = broker.node.remote_log_manager
        assert manager is not None
        topic_id = await broker.create("t", segment_bytes=1 << 20)
        batch = batch_of([bytes(600_000)])

        def copied() -> int | None:
            return manager.highest_offset_in_remote_storage(topic_id, 0)

        def held_back_ms() -> float:
            name = "kafka_server_remotelogmanager_remote_copy_throttle_time_max"
            return next(value for metric, _, value in manager.samples() if metric.name == name)

        assert (await change(broker, BROKER, "", (RATE, SET, "1"))).error_code == 0
        # Each batch has a segment of its own, and the last one's stays open. The first copy uses up the rate.
        for _ in range(2):
            assert (await broker.produce("t", batch)).error_code == 0
        await until(lambda: copied() == 0)
        for _ in range(2):
            assert (await broker.produce("t", batch)).error_code == 0
        await until(lambda: held_back_ms() > 0)
        assert copied() == 0
        assert (await change(broker, BROKER, "", (RATE, SET, str(1 << 40)))).error_code == 0
        await until(lambda: copied() == 2)


def threads_of(pid: int | None) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
