"""Shell: the console script `kafka-ds`, with subcommands for brokers, clusters and lakes.

User errors, broker errors and unreachable clusters are one line on standard error. Exit status 2 means wrong usage, 1
any other error, 130 Ctrl-C. A traceback is a bug.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

from broker.cli.catalog import catalog
from broker.cli.cluster import cluster
from broker.cli.compile import compile_broker
from broker.cli.config import config
from broker.cli.demo import demo
from broker.cli.erase import erase
from broker.cli.group import group
from broker.cli.iceberg import iceberg
from broker.cli.options import ClusterTarget, cluster_options, plain
from broker.cli.output import complain
from broker.cli.pipelines import pipelines
from broker.cli.produce import produce
from broker.cli.promote import promote
from broker.cli.server import adopt, broker, restore
from broker.cli.sql import sql
from broker.cli.table import table
from broker.cli.tail import consume, tail
from broker.cli.tier import tier
from broker.cli.topic import topic
from kafka_ds.version import VERSION

INTERRUPTED = 130
# Options of Kafka's tools, and what they are here.
KAFKAS_OPTIONS = {
    "--from-beginning": "--from beginning",
    "--offset": "--from OFFSET",
    "--reset-offsets": "reset",
    "--to-earliest": "--to beginning",
    "--to-latest": "--to end",
    "--to-offset": "--to OFFSET",
    "--to-datetime": "--to TIME",
    "--broker-list": "--bootstrap-server",
    "--consumer.config": "--command-config",
    "--producer.config": "--command-config",
    **dict.fromkeys(("--topic", "--group"), "the name alone"),
    **{f"--{word}": word for word in ("list", "create", "describe", "alter", "delete")},
}


class Program(click.Group):
    """A command group that reports errors in one line and lists commands in the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def main(self, *arguments: Any, standalone_mode: bool = True, **named: Any) -> Any:
        inner: Any = super()
        if not standalone_mode:
            return inner.main(*arguments, standalone_mode=False, **named)
        status = 0
        try:
            # The status of click's Exit; None if a command returns.
            status = inner.main(*arguments, standalone_mode=False, **named) or 0
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            status = error.exit_code
        except click.UsageError as error:
            status = _complain(_with_usage(error), error.exit_code)
        except click.ClickException as error:
            status = _complain(error.format_message(), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            status = INTERRUPTED
        except BrokenPipeError:
            _close_output()
            status = 1
        except Exception as error:
            if not _is_expected(error):
                raise
            status = _complain(plain(error), 1)
        sys.exit(status)


def _is_expected(error: Exception) -> bool:
    """Whether an error is expected and not a bug. An unloaded module's classes cannot have been raised."""
    if isinstance(error, OSError):
        return True
    loaded = sys.modules
    for module, names in (
        ("kafka_ds.errors", ("KafkaDsError",)),
        ("kafka_ds.process.settings", ("ConfigError",)),
        ("kafka_ds.delta.store.store", ("UnsupportedStore",)),
    ):
        if module in loaded:
            kinds = tuple(getattr(loaded[module], name) for name in names)
            if isinstance(error, kinds):
                return True
    return False


def _with_usage(error: click.UsageError) -> str:
    """A usage error with the usage of its command."""
    text = error.format_message()
    for clicks, plain_words in (("integer range", "integer"), ("float range", "number")):
        text = text.replace(f"is not a valid {clicks}", f"is not a valid {plain_words}")
    if isinstance(error, click.NoSuchOption) and error.option_name in KAFKAS_OPTIONS:
        text += f" Here it is: {KAFKAS_OPTIONS[error.option_name]}."
    if error.ctx is None:
        return text
    usage = error.ctx.get_usage().removeprefix("Usage: ")
    return f"{text} (usage: {usage}; try '{error.ctx.command_path} --help')"


def _complain(text: str, status: int) -> int:
    complain(" ".join(text.split()))
    return status


def _close_output() -> None:
    """Redirect output after a broken pipe, so that flushing at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="kafka-ds", message="%(prog)s %(version)s")
@cluster_options
@click.pass_context
def program(context: click.Context, target: ClusterTarget) -> None:
    """Kafka topics that are Delta tables: run brokers, look at topics, groups and tables, query them by SQL.

    \b
    Start here:
      kafka-ds broker                                   # a broker on 127.0.0.1:9092
      kafka-ds topic create orders --partitions 3
      echo '{"total": 12.5}' | kafka-ds produce orders
      kafka-ds tail orders --from beginning
    """
    context.obj = target


for command in (
    demo,
    broker,
    topic,
    produce,
    tail,
    consume,
    group,
    sql,
    table,
    tier,
    erase,
    pipelines,
    iceberg,
    catalog,
    cluster,
    config,
    restore,
    promote,
    adopt,
    compile_broker,
):
    program.add_command(command)


def main() -> NoReturn:
    """The console script."""
    program.main(prog_name="kafka-ds")
    raise AssertionError("a program ends")
