"""``python -m tests.integration.cluster_rounds FOLDER ROUNDS SEED``: brokers fail round by round under load.

It runs in its own namespaces (`cluster_network.inside_namespaces`). In each round one fault hits one broker, or the
whole cluster: a broker is killed, frozen past its session, its disk fills up, or it is cut from others, in one
direction or both, with or without its clients. The others acknowledge records meanwhile, and all are in sync again
afterwards. It prints one line of JSON: how often each fault was tried, and how much was acknowledged.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from tests.integration.cluster_clients import NumberedWriter, OffsetReader, check
from tests.integration.cluster_network import CLIENTS, ClusterNetwork, SmallDisk, address
from tests.integration.replicated_brokers import (
    PARTITIONS,
    SETTINGS,
    TOPIC,
    TopicWatcher,
    are_equal,
    log_bytes,
    values,
)
from tests.processes import BrokerCluster, wait_until

NODES = (1, 2, 3)
SESSION_MS = 2_000
PATIENCE_S = 90
OWN_SETTINGS = {
    "broker.session.timeout.ms": SESSION_MS,
    "broker.heartbeat.interval.ms": 200,
    "controller.lease.interval.ms": 300,
    "replica.lag.time.max.ms": 2_000,
    "replica.socket.timeout.ms": 2_000,
    "replica.fetch.wait.max.ms": 300,
}


class Rounds:
    """Three brokers, their faults, and the clients that write and read meanwhile."""

    settings: ClassVar[dict[str, object]] = {**SETTINGS, **OWN_SETTINGS}

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.tried: Counter[str] = Counter()
        self.network = ClusterNetwork(NODES)
        self.brokers = BrokerCluster(folder, len(NODES), self.settings)
        self.disks: dict[int, SmallDisk] = {}
        for node, broker in self.brokers.brokers.items():
            self.disks[node] = SmallDisk(broker.data)
            broker.prefix = self.network.prefix(node)
            broker.overrides["listeners"] = f"PLAINTEXT://{address(node)}:9092"
        self.brokers.start()
        self.watcher = TopicWatcher(self.brokers)
        self.watcher.create()
        self.start_clients()

    def start_clients(self) -> None:
        """Begin the load."""
        bootstrap = self.brokers.bootstrap
        self.writers = [NumberedWriter(n, bootstrap, TOPIC, PARTITIONS) for n in ("ann", "bob")]
        self.reader = OffsetReader(bootstrap, TOPIC, PARTITIONS)

    @property
    def faults(self) -> dict[str, Callable[[int], None]]:
        return {
            "kill": self.kill,
            "freeze": self.freeze,
            "cut off": self.cut_off,
            "disk": self.fill_disk,
            "cut from brokers": self.cut_from_brokers,
            "cut one way": self.cut_one_way,
            "cut from one": self.cut_from_one,
            "kill all": self.kill_all,
        }

    def run(self, count: int) -> None:
        names: list[str] = []
        for number in range(count):
            # Each fault comes once before any comes again; the first four are the most important ones.
            if not names:
                names = list(self.faults)
                if number:
                    self.chance.shuffle(names)
            name, node = names.pop(0), self.chance.choice(NODES)
            began = time.monotonic()
            print(f"round {number}: {name} {node}", end="", file=sys.stderr, flush=True)
            self.faults[name](node)
            self.tried[name] += 1
            wait_until("all in sync", self.all_in_sync, timeout_s=PATIENCE_S)
            self.progress()
            print(f": {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def all_in_sync(self) -> bool:
        try:
            return self.watcher.all_in_sync()
        except (OSError, IndexError):  # The broker is not up yet, or does not know the topic yet.
            return False

    def progress(self) -> None:
        """Wait until every partition has taken records."""
        for writer in self.writers:
            writer.wait_for_each(PATIENCE_S)

    # -- what befalls brokers -----------------------------------------------------------------

    def kill(self, node: int) -> None:
        self.brokers[node].kill()
        self.progress()
        self.brokers.start()

    def kill_all(self, node: int) -> None:
        for each in NODES:
            self.brokers[each].kill()
        self.brokers.start()

    def freeze(self, node: int) -> None:
        os.kill(self.brokers[node].pid, signal.SIGSTOP)
        try:
            self.progress()
            time.sleep(SESSION_MS / 1_000)
        finally:
            os.kill(self.brokers[node].pid, signal.SIGCONT)

    def fill_disk(self, node: int) -> None:
        """Its only directory goes offline, which ends it; its partitions continue without it."""
        broker = self.brokers[node]
        before = broker.log_file.stat().st_size
        self.disks[node].fill()
        wait_until("the broker's end", lambda: not broker.running(), timeout_s=PATIENCE_S)
        log = broker.log_file.read_bytes()[before:].decode()
        assert "No space left on device" in log, log
        assert "Shutdown broker because all log dirs have failed" in log, log
        self.progress()
        self.disks[node].free()
        broker.start()

    def cut_off(self, node: int) -> None:
        """Cut a broker from all brokers and clients."""
        self.cut(node, [each for each in (*NODES, CLIENTS) if each != node])

    def cut_from_brokers(self, node: int) -> None:
        """Cut a broker from the other brokers; clients still reach it."""
        self.cut(node, [each for each in NODES if each != node])

    def cut_from_one(self, node: int) -> None:
        """Cut a broker from one other; the third broker reaches both."""
        self.cut(node, [self.chance.choice([each for each in NODES if each != node])])

    def cut_one_way(self, node: int) -> None:
        """Cut one direction: the broker hears the others, or they hear it, but not both."""
        others = [each for each in NODES if each != node]
        self.cut(node, others, is_deaf=self.chance.random() < 0.5, is_both=False)

    def cut(
        self, node: int, others: list[int], *, is_deaf: bool = False, is_both: bool = True
    ) -> None:
        for other in others:
            if is_both or not is_deaf:
                self.network.cut(node, other)
            if is_both or is_deaf:
                self.network.cut(other, node)
        try:
            self.progress()
            time.sleep(SESSION_MS / 1_000)
        finally:
            self.network.heal_all()

    # -- the end ------------------------------------------------------------------------------

    def finish(self) -> None:
        for writer in self.writers:
            writer.stop()
        sent = sum(each.sent for each in self.writers)
        wait_until("equal logs", lambda: are_equal(self.brokers, list(NODES)), timeout_s=PATIENCE_S)
        wait_until("all read", lambda: self.reader.count() >= sent, timeout_s=PATIENCE_S)
        self.reader.stop()
        assert not self.reader.errors, self.reader.errors
        stored = [values(log_bytes(self.brokers, 1, index)) for index in range(PARTITIONS)]
        check(stored, self.writers, self.reader)

    def describe(self) -> str:
        """Each broker's state and the unanswered requests, to explain why a round did not end."""
        lines = []
        for node in NODES:
            try:
                known = {p: (x.leader_id, x.isr_nodes) for p, x in self.watcher.partitions(node)}
                lines.append(f"broker {node} knows {known}")
            except (OSError, IndexError) as error:
                lines.append(f"broker {node} does not say: {error!r}")
        for writer in self.writers:
            failed = f"{len(writer.failed)} failed, {writer.failed[:3]}"
            lines.append(f"{writer.name}: {len(writer.acknowledged)} of {writer.sent}, {failed}")
        lines.append(f"read: {self.reader.count()}, {self.reader.errors[:3]}")
        return "\n".join(lines)

    def close(self) -> None:
        """End everything: a thread that is left would keep this process alive, and its result unseen."""
        for writer in self.writers:
            writer.give_up()
        self.reader.stop()
        self.brokers.stop()
        self.network.close()


def main() -> int:
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rounds = Rounds(folder, seed)
    try:
        rounds.run(count)
        rounds.finish()
    except BaseException:
        print(f"\n{rounds.describe()}", file=sys.stderr, flush=True)
        raise
    finally:
        rounds.close()
    acknowledged = sum(len(each.acknowledged) for each in rounds.writers)
    print(json.dumps({"tried": rounds.tried, "acknowledged": acknowledged}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
