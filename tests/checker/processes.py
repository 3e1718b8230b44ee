"""``python -m tests.checker.processes FOLDER SECONDS SEED``: the history of three broker processes under faults.

It runs in namespaces of its own (`cluster_network.inside_namespaces`). The faults are those of `cluster_rounds`:
SIGKILL, SIGSTOP, full disks, and cuts of the network. The clients are librdkafka's: producers with and without
transactions, consumers with assigned partitions, and members of a group. The history is written into the folder.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.checker.__main__ import main as judge_files
from tests.checker.history import Fate, write
from tests.checker.recorder import Entry, Recorder
from tests.integration.cluster_rounds import NODES, PATIENCE_S, Rounds
from tests.integration.replicated_brokers import PARTITIONS, TOPIC
from tests.processes import wait_until

KINDS = ("send", "poll", "txn", "txn")
ABORTED = 0.2
CRASHES = 0.02
ASSIGNMENTS = 0.03
REST_SECONDS = 0.2
CLIENT = {
    "socket.timeout.ms": 4_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}
PRODUCER = {**CLIENT, "acks": "all", "enable.idempotence": True, "request.timeout.ms": 3_000}
CONSUMER = {**CLIENT, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
TRANSACTION_MS = 60_000
# Longer than PATIENCE_S: a worker may wait for a transaction to time out.
PROGRESS_S = 240
# Workers with assigned partitions, and members of a group.
LIVELY, MEMBERS = 2, 2


def key_of(partition: int) -> str:
    """The key that names a partition in a history."""
    return f"{TOPIC}-{partition}"


def take(consumer: Consumer, entry: Entry) -> int:
    """Poll once; how many records came."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for message in consumer.consume(500, timeout=0.2):
        if message.error() is None:
            read: Any = message
            found[key_of(read.partition())].append((read.offset(), read.value().decode()))
    for key, records in found.items():
        entry.polled(key, records)
    return sum(map(len, found.values()))


# Segments are rolled and copied soon, and are not kept: whoever reads from the beginning reads the table.
TIERED = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": 1_000,
    "log.roll.ms": 5_000,
    "log.retention.ms": -1,
    "log.local.retention.bytes": 1,
    "log.retention.check.interval.ms": 1_000,
    "lake.max.lag.ms": 1_000,
    "lake.local.grace.ms": 300,
}


class ClientThread:
    """A thread that sends, polls and does both in transactions; after a crash it begins again as another process."""

    def __init__(self, rounds: RecordedRounds, number: int, *, is_member: bool) -> None:
        self._recorder, self._stop = rounds.recorder, rounds.over
        self._bootstrap = {"bootstrap.servers": rounds.brokers.bootstrap}
        self._number, self._is_member = number, is_member
        self._random = random.Random(f"{rounds.seed} {number}")
        self._life = self._sent = self.done = 0
        self.errors: list[str] = []
        # It may wait for ever: librdkafka's send_offsets_to_transaction sometimes outlasts its timeout.
        self.thread = threading.Thread(target=self._run, name=f"worker {number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._life += 1
            self._name = f"w{self._number}.{self._life}"
            self._plain = Producer(
                {**PRODUCER, **self._bootstrap, "message.timeout.ms": TRANSACTION_MS}
            )
            self._producer = Producer(
                {
                    **PRODUCER,
                    **self._bootstrap,
                    "transactional.id": f"w{self._number}",
                    "transaction.timeout.ms": TRANSACTION_MS,
                    "message.timeout.ms": TRANSACTION_MS,
                }
            )
            self._consumer = self._new_consumer()
            try:
                self._live()
            except KafkaException as error:
                self.errors.append(str(error))
            for producer in (self._plain, self._producer):
                producer.purge()
            self._consumer.close()

    def _new_consumer(self) -> Consumer:
        group = "members" if self._is_member else self._name
        return Consumer({**CONSUMER, **self._bootstrap, "group.id": group})

    def _live(self) -> None:
        self._again(self._producer.init_transactions)
        self._entry: Entry | None = None
        if self._is_member:
            self._consumer.subscribe([TOPIC], on_assign=self._given, on_revoke=self._given)
        else:
            self._assign()
        while not self._stop.is_set():
            chance = self._random.random()
            if chance < CRASHES:
                return
            if chance < CRASHES + ASSIGNMENTS and not self._is_member:
                self._assign()
            getattr(self, f"_{self._random.choice(KINDS)}")()
            self.done += 1
            self._stop.wait(self._random.random() * REST_SECONDS)

    def _again(self, call: Any) -> None:
        """Call until there is no retriable error."""
        while True:
            try:
                call(30)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._stop.is_set():
                    raise

    def _given(self, _: Consumer, __: list[TopicPartition]) -> None:
        if self._entry is not None:
            self._entry.reassigned()

    def _assign(self) -> None:
        self._recorder.assign(self._name)
        # A consumer of its own: librdkafka may apply the offsets that it looked up for an earlier assignment.
        self._consumer.close()
        self._consumer = self._new_consumer()
        chosen = self._partitions()
        where = self._random.choice((OFFSET_BEGINNING, OFFSET_END))
        self._consumer.assign([TopicPartition(TOPIC, each, where) for each in chosen])

    def _partitions(self) -> list[int]:
        return self._random.sample(range(PARTITIONS), self._random.randint(1, PARTITIONS))

    def _begin(self, function: str) -> Entry:
        self._entry = self._recorder.begin(self._name, function)
        return self._entry

    def _put(self, entry: Entry, producer: Producer, waiting: set[str]) -> None:
        """Begin to send some records; what is acknowledged leaves `waiting`."""

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                value = message.value().decode()
                entry.acknowledged(value, message.offset() if message.offset() >= 0 else None)
                waiting.discard(value)

        partition = self._random.randrange(PARTITIONS)
        values = [f"{self._name}-{self._sent + each}" for each in range(3)]
        self._sent += len(values)
        waiting.update(values)
        entry.sending(key_of(partition), values)
        for value in values:
            producer.produce(TOPIC, value.encode(), partition=partition, on_delivery=delivered)

    def _send(self) -> None:
        entry, waiting = self._begin("send"), set[str]()
        for _ in range(self._random.randint(1, 3)):
            self._put(entry, self._plain, waiting)
        self._plain.flush(TRANSACTION_MS / 1_000)
        entry.end(Fate.UNKNOWN if waiting else Fate.OK)

    def _poll(self) -> None:
        entry = self._begin("poll")
        take(self._consumer, entry)
        entry.end(Fate.OK)

    def _txn(self) -> None:
        entry, waiting = self._begin("txn"), set[str]()
        # Nothing of it counts before the commit is asked for.
        entry.outcome = Fate.FAILED
        self._producer.begin_transaction()
        try:
            for _ in range(self._random.randint(1, 3)):
                self._put(entry, self._producer, waiting)
                if self._random.random() < 0.5:
                    take(self._consumer, entry)
            if self._is_member:
                self._producer.send_offsets_to_transaction(
                    self._consumer.position(self._consumer.assignment()),
                    self._consumer.consumer_group_metadata(),
                    30,
                )
            if self._random.random() < ABORTED:
                self._again(self._producer.abort_transaction)
                entry.end(Fate.FAILED)
                return
            self._producer.flush(TRANSACTION_MS / 1_000)
            entry.deciding()
            entry.outcome = Fate.UNKNOWN
            self._again(self._producer.commit_transaction)
            entry.end(Fate.OK)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._again(self._producer.abort_transaction)
            entry.end(Fate.FAILED)


class RecordedRounds(Rounds):
    """Rounds of brokers with tables, whose clients' operations make a history."""

    settings: ClassVar[dict[str, object]] = {**Rounds.settings, **TIERED}

    def __init__(self, folder: Path, seed: int) -> None:
        began = time.monotonic()
        self.recorder = Recorder(lambda: time.monotonic() - began)
        self.over = threading.Event()
        self.seed = seed
        super().__init__(folder, seed)

    def start_clients(self) -> None:
        self.workers = [
            ClientThread(self, number, is_member=number >= LIVELY)
            for number in range(LIVELY + MEMBERS)
        ]
        self._followers = [
            threading.Thread(target=self._follow, args=(isolation,))
            for isolation in ("read_committed", "read_uncommitted")
        ]
        for each in self._followers:
            each.start()

    def _reader(self, isolation: str) -> Consumer:
        settings = {
            **CONSUMER,
            "bootstrap.servers": self.brokers.bootstrap,
            "group.id": isolation,
            "isolation.level": isolation,
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        return consumer

    def _record_poll(self, consumer: Consumer, name: str, isolation: str) -> int:
        is_committed = isolation == "read_committed"
        entry = self.recorder.begin(name, "poll", is_committed=is_committed)
        count = take(consumer, entry)
        entry.end(Fate.OK)
        return count

    def _follow(self, isolation: str) -> None:
        consumer = self._reader(isolation)
        while not self.over.is_set():
            self._record_poll(consumer, f"reader-{isolation}", isolation)
        consumer.close()

    def progress(self) -> None:
        """Wait until workers have ended some more operations; a group's members may hang."""
        wanted = [worker.done + 2 for worker in self.workers]

        def have_gone_on() -> bool:
            pairs = zip(self.workers, wanted, strict=True)
            return sum(each.done >= least for each, least in pairs) >= LIVELY

        wait_until("workers that go on", have_gone_on, timeout_s=PROGRESS_S)

    def play(self, seconds: float) -> None:
        """Let faults happen one after the other, and then read everything."""
        deadline = time.monotonic() + seconds
        names: list[str] = []
        while time.monotonic() < deadline:
            if not names:
                names = list(self.faults)
                self.chance.shuffle(names)
            name, node = names.pop(), self.chance.choice(NODES)
            print(f"{name} {node}", file=sys.stderr, flush=True)
            self.faults[name](node)
            self.tried[name] += 1
            wait_until("all in sync", self.all_in_sync, timeout_s=PATIENCE_S)
            self.progress()
        self.end_clients()
        for isolation in ("read_committed", "read_uncommitted"):
            self._read_to_end(isolation)

    def _read_to_end(self, isolation: str) -> None:
        consumer = self._reader(isolation)
        ends = {
            p: consumer.get_watermark_offsets(TopicPartition(TOPIC, p), timeout=PATIENCE_S)[1]
            for p in range(PARTITIONS)
        }

        def has_all() -> bool:
            self._record_poll(consumer, f"last-{isolation}", isolation)
            places = [TopicPartition(TOPIC, p) for p in ends]
            # An open transaction holds up readers until its timeout aborts it.
            return all(each.offset >= ends[each.partition] for each in consumer.position(places))

        wait_until("everything read", has_all, timeout_s=2 * TRANSACTION_MS / 1_000)
        consumer.close()

    def end_clients(self) -> None:
        """End all clients and wait for them."""
        self.over.set()
        for thread in (*(worker.thread for worker in self.workers), *self._followers):
            thread.join(PATIENCE_S)

    def close(self) -> None:
        """End everything."""
        if hasattr(self, "workers"):
            self.end_clients()
        self.brokers.stop()
        self.network.close()


def main() -> int:
    """The exit status of the judgement."""
    folder, seconds, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    rounds = RecordedRounds(folder, seed)
    try:
        rounds.play(seconds)
    finally:
        rounds.close()
        write(folder / "history.jsonl", rounds.recorder.history())
        print(dict(rounds.tried))
        for worker in rounds.workers:
            print(f"worker {worker.thread.name}: {worker.done} operations, {worker.errors[:3]}")
    return judge_files([str(folder / "history.jsonl")])


if __name__ == "__main__":
    sys.exit(main())
