"""Runs one seed again and prints everything that happens: `python -m tests.sim cluster 17`."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.sim.loop import PROCESS
from tests.sim.scenario import Scenario
from tests.sim.shapes import FAMILIES


class _Lines(logging.Handler):
    """Puts the brokers' own log lines between the lines of the run."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        self._scenario = scenario

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        name = process.name if process is not None else "-"
        error = f" {record.exc_info[1]!r}" if record.exc_info else ""
        self._scenario.world.log(f"  [{name}] {record.name}: {record.getMessage()}{error}")


def main() -> int:
    """The exit status: 0 if all seeds pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "last", type=int, nargs="?", help="run all seeds up to this one, and tell little"
    )
    given = parser.parse_args()
    if given.last is not None and given.last < given.seed:
        parser.error(f"the last seed, {given.last}, comes before the first, {given.seed}")
    failed = 0
    logging.disable(logging.NOTSET if given.last is None else logging.CRITICAL)
    for seed in range(given.seed, (given.last or given.seed) + 1):
        scenario = FAMILIES[given.family](seed)
        if given.last is None:
            logging.root.handlers = [_Lines(scenario)]
            logging.root.setLevel(logging.INFO)
        try:
            scenario.run()
        except AssertionError as error:
            failed += 1
            print(error if given.last is None else str(error).partition("\n")[0], flush=True)
        if given.last is None:
            print("\n".join(scenario.world.lines))
            print(f"{given.family} {seed}: {scenario.world.digest}")
    print(f"{given.family}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
