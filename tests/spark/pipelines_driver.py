"""`kafka-ds pipelines run` in a process that kills itself right before or right after one of a topic's commits."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from broker.cli.main import program
from kafka_ds.delta.table_writer import TableWriter
from spark_conf.pipelines import history, pipeline, typed_table
from tests.spark.java import QUICK_JAVA


def main() -> None:
    when, number, offsets, topic, *words = sys.argv[1:]
    os.environ["JDK_JAVA_OPTIONS"] = QUICK_JAVA
    vars(pipeline)["OFFSETS_PER_STEP"] = int(offsets)
    commits = itertools.count(1)

    def dying(commit: Callable[..., Any], path: Callable[..., str]) -> Callable[..., Any]:
        def committed(*given: Any, **named: Any) -> Any:
            # Other topics of the broker may be behind, too.
            is_last = topic in path(*given) and next(commits) == int(number)
            if is_last and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = commit(*given, **named)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return committed

    for name in ("write", "merge"):
        vars(typed_table)[name] = dying(vars(typed_table)[name], lambda rows, path, *_: path)
    # Cleanings commit file by file.
    vars(history)["COMMIT_BYTES"] = 1
    committed_to = dying(TableWriter.commit, lambda writer, *_: writer.log.table)
    setattr(TableWriter, "commit", committed_to)  # noqa: B010 - for mypy
    program.main(words)


if __name__ == "__main__":
    main()
