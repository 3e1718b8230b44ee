"""Shell: the cleaner process. Only it loads numba and the record loops, never the broker's process.

log.cleaner.threads low-priority threads clean, and one more receives aborts; a job can raise the number. The process
ends when the broker closes the channel; the next start removes unfinished files.
"""

from __future__ import annotations

import gc
import secrets
import sys
from collections.abc import Sequence

from kafka_ds.ipc.worker import COPY_NICENESS, Operations, Worker, begin, serve


def main(arguments: Sequence[str]) -> None:
    """Serve the channel whose file descriptor is the first argument."""
    channel = begin(arguments, "log cleaner")
    # Slow imports come after the check of the channel.
    from broker.cleaner.loops import loops
    from broker.cleaner.service import CleaningService
    from broker.cleaner.throttle import Throttle
    from kafka_ds.process.system import SystemClock, SystemDisk
    from kafka_ds.records import kernel

    kernel.warm_up()
    loops()
    service = CleaningService(
        SystemDisk(),
        Throttle(SystemClock()),
        lambda: (secrets.randbits(64), secrets.randbits(64)),
        lambda threads: worker.read_with(threads + 1),
    )
    gc.freeze()
    worker = Worker(
        channel,
        Operations(writing=(), reading=service.operations(), afterwards=lambda: None),
        reader_threads=2,
        reader_niceness=COPY_NICENESS,
    )
    serve(worker)


if __name__ == "__main__":
    main(sys.argv[1:])
