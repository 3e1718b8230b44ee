"""Shell: runs a synchronization once, or periodically until it is stopped."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import click

_log: Final = logging.getLogger("kafka_ds")


def keep(
    sync: Callable[[], tuple[Mapping[str, object], Mapping[str, str]]],
    *,
    once: bool,
    interval_s: float,
) -> NoReturn:
    """Print the results of each round; with `once`, exit with 1 if anything failed."""
    from kafka_ds.errors import KafkaDsError

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    while True:
        try:
            done, failed = sync()
            for name, what in done.items():
                click.echo(f"{name}: {what}")
            if once:
                raise click.exceptions.Exit(1 if failed else 0)
        except (KafkaDsError, OSError) as problem:
            # Store, catalog or brokers may be unavailable for a while.
            if once:
                raise
            _log.error("this round failed, and is tried again: %s", problem)
        time.sleep(interval_s)
