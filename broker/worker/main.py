"""Shell: starts the tier worker's process and passes requests to `broker.worker.service`.

It does the tier's heavy work with Arrow, Parquet, numba and deltalake, which the broker's process never loads.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from broker.worker.errors import OffsetOutOfRange, StorageError
from broker.worker.rpc import OUT_OF_RANGE, UNAVAILABLE, TierSettings
from kafka_ds.delta.commit import CommitError, Conflict
from kafka_ds.delta.log import ForeignTable
from kafka_ds.ipc.shared_memory import WorkerMemory
from kafka_ds.ipc.worker import Operations, Worker, begin, serve
from kafka_ds.process.crash_points import WORKER_POINTS, armed_from_environment

# A Python thread yields after so long: a consumer that waits for its first byte waits for that.
SWITCH_SECONDS = 0.0005
KINDS: dict[type[Exception], str] = {
    OffsetOutOfRange: OUT_OF_RANGE,
    StorageError: UNAVAILABLE,
    CommitError: UNAVAILABLE,
    Conflict: UNAVAILABLE,
    ForeignTable: UNAVAILABLE,
    OSError: UNAVAILABLE,
}


class PandasBlocker:
    """Arrow imports pandas, where it is installed, at its first array: 0.25 s and 39 MiB for nothing here."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """As if it were not installed."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def main(arguments: Sequence[str]) -> None:
    """Serve the channel whose file descriptor is the first argument."""
    channel = begin(arguments, "tier worker")
    settings = TierSettings.from_worker_argument(arguments[1])
    sys.meta_path.insert(0, PandasBlocker())
    from broker.worker.service import (
        Service,
    )  # After the imports above, so that a broken channel is seen first.

    sys.setswitchinterval(SWITCH_SECONDS)
    memory = WorkerMemory(int(arguments[2])) if len(arguments) > 2 else None
    service = Service(
        settings,
        armed_from_environment(WORKER_POINTS),
        memory,
        read_with=lambda threads: worker.read_with(threads),
    )
    gc.freeze()
    operations = Operations(
        writing=(service.writing(), service.publishing()),
        reading=service.reading(),
        maintaining=service.maintaining(),
        afterwards=service.afterwards,
        kinds=KINDS,
        freed=memory.end if memory is not None else lambda leases: None,
    )
    worker = Worker(channel, operations, reader_threads=settings.remote_log_reader_threads)
    serve(worker)


if __name__ == "__main__":
    main(sys.argv[1:])
