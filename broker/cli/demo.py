"""Shell: `kafka-ds demo`: starts a broker, produces orders and queries them by SQL; each step is a `kafka-ds` command.

The broker is a child process on a free local port; its folder is deleted at the end. Only the installed package is
needed, and no network.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from broker.cli.options import ENVIRONMENT_SERVER, CommandError
from broker.cli.output import note, progress

RECORDS = 100_000
RECORDS_SHOWN = 3
LAG_MS = 1_000
# Generous for slow machines: a broker starts in half a second, and records are in the lake after another second.
START_SECONDS = 60.0
TIERED_SECONDS = 300.0
# What the broker's log says if its code is not compiled yet (`kafka_ds.records.kernel`).
COMPILES = "Compiling loops"
# -P: not the code of a checkout that the demo is started in.
PROGRAM = (sys.executable, "-P", "-m")
CITIES = ("Bergen", "Lima", "Oslo", "Porto", "Quito")


@click.command(short_help="Run a demo, from a broker to SQL.")
@click.option(
    "--records",
    type=click.IntRange(min=RECORDS_SHOWN + 1),
    default=RECORDS,
    show_default=True,
    metavar="N",
    help="The number of orders.",
)
@click.option("--folder", metavar="DIR", help="Keep the data there. Default: a temporary folder.")
@click.option("--keep", is_flag=True, help="Leave the broker running until Ctrl-C.")
def demo(records: int, folder: str | None, keep: bool) -> None:
    """Run a demo: a broker, a topic, a consumer group's lag, the Delta table, SQL.

    \b
    Examples:
      kafka-ds demo
      kafka-ds demo --folder demo-data --keep
    """
    if folder and Path(folder).is_dir() and any(Path(folder).iterdir()):
        raise CommandError(f"--folder {folder}: it is not empty, and the demo needs a new one")
    made = None if folder else tempfile.mkdtemp(prefix="kafka-ds-demo-")
    root = Path(folder or str(made)).absolute()
    root.mkdir(parents=True, exist_ok=True)
    try:
        with _broker(root) as address:
            Demonstration(address, root, records).run()
            if not keep:
                note(
                    "\nThat is all. To look around, keep it: kafka-ds demo --folder demo-data --keep"
                )
            else:
                note(f"the broker listens on {address} until Ctrl-C; its lake is {root / 'lake'}")
                while True:
                    time.sleep(3_600)
    except KeyboardInterrupt:
        note("stopped")
    except CommandError as problem:
        made = None
        raise CommandError(
            f"{problem.message} (the broker's log is {root / 'broker.log'})"
        ) from None
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _broker(root: Path) -> Iterator[str]:
    """Run a broker on a free port; yields its address."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": root / "log",
        "lake.uri": root / "lake",
        "lake.max.lag.ms": LAG_MS,
        "lake.offsets.interval.ms": LAG_MS,
    }
    words = [*PROGRAM, "broker"]
    for name, value in settings.items():
        words += ["--override", f"{name}={value}"]
    shown = " ".join(f"--override {name}={value}" for name, value in settings.items())
    _say(f"kafka-ds broker {shown} &")
    with (root / "broker.log").open("w") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.startswith("ready "):
            tail = (root / "broker.log").read_text().strip().splitlines()[-1:]
            raise CommandError(f"the broker did not start: {''.join(tail)}")
        click.echo(line)
        yield line.removeprefix("ready ")
    finally:
        process.terminate()
        process.wait(START_SECONDS)


class Demonstration:
    """The steps of the demo; each prints and runs a command."""

    def __init__(self, address: str, root: Path, records: int) -> None:
        self._environment = {**os.environ, ENVIRONMENT_SERVER: address}
        self._lake = root / "lake"
        self._log = root / "broker.log"
        self._records = records

    def run(self) -> None:
        """Run all steps. Raises CommandError if one fails."""
        self._step("topic", "create", "orders", "--partitions", "3")
        self._produce()
        self._step("topic", "describe", "orders")
        self._step("tail", "orders", "--from", "beginning", "--max-messages", str(RECORDS_SHOWN))
        few = str(self._records // 4)
        _say(f"kafka-ds consume orders --group billing --max-messages {few} > /dev/null")
        self._output("consume", "orders", "--group", "billing", "--max-messages", few)
        self._step("group", "describe", "billing")
        self._wait_for_lake()
        self._step("tier", "status")
        lake = ("--lake", str(self._lake))
        self._step("sql", *lake, "SELECT count(*) AS orders, max(timestamp) AS newest FROM orders")
        self._step(
            "sql",
            *lake,
            "SELECT decode(value)->>'city' AS city, count(*) AS orders, "
            "round(sum(CAST(decode(value)->>'total' AS DOUBLE)), 2) AS total FROM orders GROUP BY city ORDER BY city",
        )
        self._step("table", "show", "orders", *lake, "--history", "3")

    def _step(self, *words: str) -> None:
        _say(" ".join(["kafka-ds", *map(_quoted, words)]))
        click.echo(self._output(*words), nl=False)

    def _output(self, *words: str) -> str:
        done = subprocess.run(
            [*PROGRAM, "broker.cli", *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CommandError(f"{words[0]}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def _produce(self) -> None:
        """Produce orders keyed by customer, the same in each run."""
        words = ("produce", "orders", "--key-separator", ":", "--compression", "zstd")
        _say(f"... | {shlex.join(['kafka-ds', *words])}")
        chosen = random.Random(1)  # noqa: S311 - examples, no secrets
        with (
            progress("producing", self._records) as advance,
            subprocess.Popen(
                [*PROGRAM, "broker.cli", *words],
                env=self._environment,
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stderr is not None
            for number in range(self._records):
                customer = chosen.randrange(1_000)
                order = {
                    "order": number,
                    "city": CITIES[customer % len(CITIES)],
                    "total": round(chosen.uniform(1, 100), 2),
                }
                process.stdin.write(f"{customer}:{json.dumps(order)}\n")
                advance(1)
            process.stdin.close()
            message = process.stderr.read().strip()
            if process.wait() != 0:
                raise CommandError(message)
        click.echo(message)

    def _wait_for_lake(self) -> None:
        """Wait until the table has every record."""
        deadline = time.monotonic() + TIERED_SECONDS
        done = 0
        compiles = False
        with progress("moving to the lake", self._records) as advance:
            while done < self._records:
                if time.monotonic() > deadline:
                    raise CommandError("the records are not in the lake in time")
                if not compiles and COMPILES in self._log.read_text(errors="replace"):
                    compiles = True
                    note("the broker compiles its loops, once for this machine: half a minute")
                (row,) = json.loads(self._output("tier", "status", "--json"))
                advance((row["lake_rows"] or 0) - done)
                done = row["lake_rows"] or 0


def _quoted(word: str) -> str:
    """A word quoted for a shell."""
    return f'"{word}"' if "'" in word and '"' not in word else shlex.quote(word)


def _say(command: str) -> None:
    click.secho(f"\n$ {command}", fg="green", bold=True)
