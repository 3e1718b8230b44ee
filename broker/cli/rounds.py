"""Shell: commands that keep something in step: once, or round after round until they are stopped."""

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
    """Print what each round did, a line each; what it could not do is in the log, and the exit status of one round."""
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
            # A store, a catalog or the brokers are away: for a while, it may be.
            if once:
                raise
            _log.error("%s", problem)
        time.sleep(interval_s)
