"""Shell: the child process that cleans logs: the record loops and numba, which the broker's own process never loads.

Rules of this file: log.cleaner.threads threads clean, at a low priority, and one more listens for aborts. The process
ends when the broker's end of the channel closes: the next start removes whatever it leaves.
"""

from __future__ import annotations

import gc
import secrets
import sys
from collections.abc import Sequence

from broker.cleaning.settings import CleanerSettings
from broker.workers.worker import COPY_NICENESS, Worker, begin, serve


def main(arguments: Sequence[str]) -> None:
    """Serve the channel whose file descriptor is the first argument."""
    channel = begin(arguments, "log cleaner")
    settings = CleanerSettings.from_child_argument(arguments[1])
    # The heavy imports: a broken channel is seen before.
    from broker.cleaning.loops import loops
    from broker.cleaning.service import CleaningService
    from broker.cleaning.throttle import Throttle
    from broker.system import SystemClock, SystemDisk
    from kafka_ds.wire import kernel

    kernel.warm_up()
    loops()
    throttle = Throttle(settings.log_cleaner_io_max_bytes_per_second, SystemClock())
    service = CleaningService(
        settings, SystemDisk(), throttle, lambda: (secrets.randbits(64), secrets.randbits(64))
    )
    gc.freeze()
    worker = Worker(
        channel,
        writing={},
        reading=service.operations(),
        afterwards=lambda: None,
        reader_threads=settings.log_cleaner_threads + 1,
        reader_niceness=COPY_NICENESS,
    )
    serve(worker)


if __name__ == "__main__":
    main(sys.argv[1:])
