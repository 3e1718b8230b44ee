"""Settings of the tier's worker that change while it runs."""

from pathlib import Path

from broker.worker.rpc import ReadTieredState
from kafka_ds.protocol.errors import ErrorCode
from tests.in_process import in_process
from tests.loops import in_loop, until
from tests.unit.handlers.config_requests import BROKER, SET, change

THREADS = "remote.log.reader.threads"
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


def threads_of(pid: int | None) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
