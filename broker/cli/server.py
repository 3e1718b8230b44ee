"""Shell: `kafka-ds broker`, `restore` and `adopt`, which run on a broker's machine.

They are the subcommands of `python -m broker`, with a progress bar on a terminal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import click

from broker.cli.output import progress, tracked
from broker.compiled.finder import use_build

T = TypeVar("T", bound=Callable[..., Any])

_override = click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting that wins over the file; repeat it.",
)
_properties = click.argument("properties", metavar="[SERVER.PROPERTIES]", required=False)


def _ends_with_status(function: Callable[..., int]) -> Callable[..., None]:
    """Make a command exit with the status that its function returns."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> None:
        raise click.exceptions.Exit(function(*arguments, **named))

    return called


@click.command(short_help="Run a broker, or several on one machine.")
@_properties
@_override
@click.option(
    "--processes",
    metavar="N",
    help="The number of brokers, each in a process of its own: broker.processes.",
)
@_ends_with_status
def broker(properties: str | None, overrides: tuple[str, ...], processes: str | None) -> int:
    """Run a broker, until SIGTERM or Ctrl-C.

    It prints one line, "ready HOST:PORT", once it accepts clients; its log goes to standard error. Without settings it
    listens on 127.0.0.1:9092 and keeps its data below the folder "data".

    A broker uses one core. `--processes N` runs N of them as one unit, whose node ids and ports grow by one from broker
    to broker; `kafka-ds config check` shows their settings. The line has the address of the first, once all accept
    clients. A broker that ends is logged and started again.

    \b
    Examples:
      kafka-ds broker
      kafka-ds broker server.properties --override lake.max.lag.ms=5000
      kafka-ds broker server.properties --processes 4
    """
    use_build()  # Before what it compiles is imported.
    from broker.commands import run

    return run(properties, overrides, processes)


@click.command(short_help="Restore the empty disks of a broker from the lake.")
@_properties
@_override
@_ends_with_status
def restore(properties: str | None, overrides: tuple[str, ...]) -> int:
    """Restore the empty disks of a broker from the lake, before it is started again.

    The broker must not run, and log.dirs must be empty. It prints what was restored and what was not.

    \b
    Example:
      kafka-ds restore server.properties
    """
    from broker.commands import restore_disks

    with ExitStack() as stack:
        done, advance = 0, None

        def report(back: int, total: int) -> None:
            nonlocal done, advance
            if advance is None:
                bar = progress("restoring", total, unit="partitions")
                advance = stack.enter_context(bar)
            advance(back - done)
            done = back

        return restore_disks(properties, overrides, click.echo, report)


@click.command(short_help="Adopt the data directories of an Apache Kafka broker.")
@_properties
@_override
@click.option(
    "--topic-config",
    "topic_configs",
    multiple=True,
    metavar="TOPIC:KEY=VALUE",
    help="A topic's setting, which wins over Kafka's metadata; repeat it.",
)
@click.option(
    "--metadata-log-dir",
    metavar="DIR",
    help="Kafka's own metadata log, if it is not in one of log.dirs.",
)
@click.option("--dry-run", is_flag=True, help="Only report what would be adopted.")
@_ends_with_status
def adopt(
    properties: str | None,
    overrides: tuple[str, ...],
    topic_configs: tuple[str, ...],
    metadata_log_dir: str | None,
    dry_run: bool,
) -> int:
    """Adopt the data directories of an Apache Kafka broker in place.

    Kafka must have been stopped. Copy the directories first: Kafka can no longer use adopted ones.

    \b
    Examples:
      kafka-ds adopt server.properties --dry-run
      kafka-ds adopt server.properties --topic-config orders:retention.ms=-1
    """
    from broker.commands import adopt_directories

    return adopt_directories(
        properties,
        overrides,
        click.echo,
        topic_configs=topic_configs,
        metadata_log_dir=metadata_log_dir,
        dry_run=dry_run,
        track=lambda what, logs: tracked(what, logs, unit="partitions"),
    )
