"""`python -m tests.soak MINUTES [FOLDER]`: the load, restarts, samples; then what was acknowledged is counted.

Every RESTART_S the broker is stopped (SIGTERM) or killed (SIGKILL), in turns, and started anew. Ends with 0 where
nothing that was acknowledged is lost or there twice, no client failed, the log has no traceback, and all stays bounded.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.processes import BrokerProcess
from tests.soak.judging import Sample, gaps, judge, report
from tests.soak.load import COMPACTED, IDEMPOTENT, TRANSACTIONAL, Load, number_of
from tests.soak.sampling import sample

RESTART_S = 300.0
SAMPLE_S = 5.0
# Tables are looked into at every so many samples.
TABLES_EVERY = 6
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
    # Or whose producer still looks for a topic would make it again when it is deleted.
    "auto.create.topics.enable": "false",
}


def soak(
    folder: Path, duration_s: float, *, restart_s: float = RESTART_S, scale: float = 1.0
) -> tuple[list[Sample], list[str], dict[str, int]]:
    """Samples, what is wrong, and what was done."""
    broker = BrokerProcess(folder, SETTINGS).start()
    load = Load(broker.bootstrap, broker.lake, scale)
    samples: list[Sample] = []
    life = 0
    try:
        load.start()
        began = time.monotonic()
        next_restart = began + restart_s
        while (now := time.monotonic()) < began + duration_s and not load.failures:
            if now >= next_restart:
                life += 1
                broker.kill() if life % 2 else broker.stop()
                broker.start()
                next_restart = time.monotonic() + restart_s
            tables = len(samples) % TABLES_EVERY == 0
            samples.append(sample(broker, time.monotonic() - began, life, tables=tables))
            time.sleep(SAMPLE_S)
        load.stop()
        wrong = [*load.failures, *_lost(load)]
    finally:
        broker.stop()
    if "Traceback" in broker.log_file.read_text():
        wrong.append(f"{broker.log_file} has a traceback")
    acknowledged = {
        "acknowledged, idempotent": len(load.idempotent),
        "acknowledged, committed": len(load.committed),
        "starts of the broker": life + 1,
    }
    return samples, wrong, acknowledged | load.counts


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
    minutes = float(words[0]) if words else 60.0
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = Path(words[1]) if len(words) > 1 else Path(temporary)
        samples, wrong, counts = soak(folder, minutes * 60)
    verdicts = judge(samples)
    print(report(verdicts))
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    wrong += [f"{each.name} grows" for each in verdicts if not each.is_bounded]
    print("\n".join(wrong) if wrong else "all that was acknowledged is there, and all is bounded")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
