"""`kafka-ds pipelines run` on a cluster whose executors are killed in the midst of tasks that read values of JSON.

Tasks are counted by files in a folder, in whichever executor they are; those with the numbers given kill theirs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa

from broker.cli.main import program
from spark_conf.pipelines import json_reader, pipeline
from tests.spark.dying_sink import executor
from tests.spark.java import QUICK_JAVA


def number_of_call(folder: Path) -> int:
    """How many calls there were before, in all processes."""
    number = 0
    while True:
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


def dying(
    make: Callable[[pa.StructType], Callable[[pa.Array], pa.Array]],
    folder: Path,
    deaths: Collection[int],
) -> Callable[[pa.StructType], Callable[[pa.Array], pa.Array]]:
    """A reader of JSON that kills its executor at these calls."""

    def made(objects: pa.StructType) -> Callable[[pa.Array], pa.Array]:
        read = make(objects)

        def read_or_die(values: pa.Array) -> pa.Array:
            if number_of_call(folder) in deaths:
                os.kill(executor(), signal.SIGKILL)
            return read(values)

        return read_or_die

    return made


def main() -> None:
    folder, deaths, offsets, *words = sys.argv[1:]
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_JAVA
    vars(pipeline)["OFFSETS_PER_STEP"] = int(offsets)
    wanted = frozenset(map(int, deaths.split(",")))
    vars(json_reader)["json_reader"] = dying(json_reader.json_reader, Path(folder), wanted)
    program.main(words)


if __name__ == "__main__":
    # Tasks find the functions by this name, and not in `__main__`.
    from tests.spark import executor_deaths

    executor_deaths.main()
