"""`python -m tests.soak MINUTES [FOLDER]`: load, restarts and samples; then acknowledged records are counted.

Every RESTART_S the broker is killed (SIGKILL) or stopped (SIGTERM), in turns, and started again. In the middle of a run
it lives longer, so that its memory must come to rest. While it is away a week passes for the lake. The exit status is 0
if no acknowledged record is lost or there twice, no client failed, the log has no traceback, no process of the broker
outlives it, and every value stays within its bound. FOLDER keeps the samples, the broker's log and all other files.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench.machine import children
from tests.processes import BrokerProcess, wait_until
from tests.soak.ageing import age
from tests.soak.judging import Sample, gaps, judge, judge_stalls, report, stalls_in
from tests.soak.load import COMPACTED, IDEMPOTENT, TRANSACTIONAL, Load, number_of
from tests.soak.sampling import sample

RESTART_S = 300.0
# No restarts between these parts of a run.
LONG_LIFE = (1 / 4, 2 / 3)
SAMPLE_S = 5.0
# Only every sixth sample looks into the tables.
TABLES_EVERY = 6
# The values that are printed during a run.
TOLD = ("broker memory MiB", "worker memory MiB", "broker descriptors", "live files of topics")
SETTINGS = {
    "lake.max.lag.ms": 5_000,
    "lake.local.grace.ms": 5_000,
    "lake.maintenance.interval.ms": 20_000,
    "log.retention.check.interval.ms": 5_000,
    "remote.log.manager.task.interval.ms": 5_000,
    "log.cleaner.backoff.ms": 2_000,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "log.segment.delete.delay.ms": 5_000,
    # The smallest allowed, so that compaction shows within an hour.
    "offsets.topic.segment.bytes": 1 << 20,
    "transaction.state.log.segment.bytes": 1 << 20,
    # Otherwise a producer that still looks for a deleted topic would create it again.
    "auto.create.topics.enable": "false",
}


def restarts(duration_s: float) -> list[float]:
    """The times of restarts, in seconds from the beginning."""
    long_from, long_until = (part * duration_s for part in LONG_LIFE)
    times = [number * RESTART_S for number in range(1, int(duration_s / RESTART_S))]
    return [at for at in times if not long_from < at < long_until]


def soak(
    folder: Path, duration_s: float, *, restarts_s: Sequence[float], scale: float = 1.0
) -> tuple[list[Sample], list[str], dict[str, int]]:
    """Run; returns the samples, the problems, and the actions."""
    broker = BrokerProcess(folder, SETTINGS).start()
    load = Load(broker.bootstrap, broker.lake, scale)
    samples: list[Sample] = []
    wrong: list[str] = []
    life, aged = 0, 0
    try:
        load.start()
        began = time.monotonic()
        waiting = list(restarts_s)
        while (now := time.monotonic() - began) < duration_s and not load.failures:
            if waiting and now >= waiting[0]:
                del waiting[0]
                life += 1
                aged += _restart(broker, load, wrong, kills=life % 2 == 1)
            if not broker.running():
                wrong.append(f"the broker has ended by itself in life {life + 1}")
                break
            tables = len(samples) % TABLES_EVERY == 0
            samples.append(sample(broker, time.monotonic() - began, life, tables=tables))
            if tables:
                print(progress(samples[-1], load), file=sys.stderr, flush=True)
            time.sleep(SAMPLE_S)
        load.stop()
        wrong += [*load.failures, *(_lost(load) if broker.running() else ())]
    finally:
        _stop(broker, wrong)
    if "Traceback" in broker.log_file.read_text():
        wrong.append(f"{broker.log_file} has a traceback")
    done = {
        "acknowledged, idempotent": len(load.idempotent),
        "acknowledged, committed": len(load.committed),
        "starts of the broker": life + 1,
        "files that a week passed for": aged,
    }
    return samples, wrong, done | load.counts


def progress(seen: Sample, load: Load) -> str:
    """Where a run is: half a minute apart, as tables are looked into."""
    told = ", ".join(f"{name} {seen.values[name]:.0f}" for name in TOLD if name in seen.values)
    done = f"{len(load.idempotent) + len(load.committed)} records to be found again"
    return f"{seen.at_s / 60:5.1f} min, life {seen.life + 1}: {done}; {told}"


def _stop(broker: BrokerProcess, wrong: list[str]) -> None:
    if broker.running() and (status := broker.stop()):
        wrong.append(f"the broker was asked to stop, and ended with status {status}")


def _restart(broker: BrokerProcess, load: Load, wrong: list[str], *, kills: bool) -> int:
    """End the broker, let a week pass in the lake, start it; gives the number of files that are older now."""
    processes = children(broker.pid)
    broker.kill() if kills else _stop(broker, wrong)
    wait_until("the broker's processes end", lambda: not any(map(_runs, processes)))
    with load.reading:
        aged = age(broker.lake)
    broker.start()
    return aged


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _lost(load: Load) -> list[str]:
    wrong = []
    for topic, expected in ((IDEMPOTENT, load.idempotent), (TRANSACTIONAL, load.committed)):
        numbers = load.read(topic, number_of)
        lost, twice = gaps(numbers, expected)
        if lost:
            wrong.append(f"{topic}: {len(lost)} acknowledged records are lost, from {lost[0]} on")
        if twice:
            wrong.append(f"{topic}: {len(twice)} records are there twice, from {twice[0]} on")
        if topic == TRANSACTIONAL and load.aborted & set(numbers):
            wrong.append(f"{topic}: {len(load.aborted & set(numbers))} aborted records are read")
    newest = dict(load.read(COMPACTED, lambda message: (message.key(), number_of(message))))
    old = [key for key, number in load.newest.items() if newest.get(key, -1) < number]
    if old:
        wrong.append(f"{COMPACTED}: {len(old)} keys lack their newest record")
    return wrong


def main(words: list[str]) -> int:
    """Run, and tell."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Mixed load with restarts, in which nothing may grow or be lost.",
    )
    parser.add_argument("minutes", nargs="?", type=float, default=60.0, help="default %(default)s")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="keeps samples, logs and lake (default: a temporary one)",
    )
    asked = parser.parse_args(words)
    if asked.folder is not None and asked.folder.exists() and any(asked.folder.iterdir()):
        parser.error(f"{asked.folder} is not empty: another run's files would count as this one's")
    # SIGTERM ends the soak's broker, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = asked.folder or Path(temporary)
        duration_s = asked.minutes * 60
        samples, wrong, counts = soak(folder, duration_s, restarts_s=restarts(duration_s))
        (folder / "samples.json").write_text(json.dumps([asdict(each) for each in samples]))
        stalls, own = judge_stalls(stalls_in((folder / "broker.log").read_text(errors="replace")))
    wrong += own
    verdicts = judge(samples)
    print(report(verdicts))
    print(stalls)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    wrong += [f"{each.name} grows" for each in verdicts if not each.is_bounded]
    print("\n".join(wrong) if wrong else "all that was acknowledged is there, and all is bounded")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
