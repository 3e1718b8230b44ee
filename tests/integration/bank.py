"""What several tests use: Brokers, Bank, unless_not_now, _end and others."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.integration.bank_teller import (
    EXIT_FENCED,
    GROUP,
    LEDGERS,
    ORDERS,
    SENT,
    WRITTEN,
    ledger_of,
    nap_of,
)
from tests.processes import wait_until
from tests.topics import create_topic

TELLERS = ("teller-0", "teller-1")


ACCOUNTS = 12


PARTITIONS = 2


# So many that each of three tellers gets some.
ORDER_PARTITIONS = 4


ORDERS_AT_ONCE = 60


TIMEOUT_S = 120


T = TypeVar("T")


# What an operator's client says while there is no coordinator or leader yet.
NOT_NOW = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)


# How often each (order, account, change) is there.
Entries: TypeAlias = Counter[tuple[int, int, int]]


SETTINGS: dict[str, object] = {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "group.min.session.timeout.ms": 1_000,
    "group.initial.rebalance.delay.ms": 0,
}


class Brokers(Protocol):
    """One broker, or several that are one to their clients."""

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        ...

    def start(self) -> object:
        """Start what does not run."""

    def kill(self) -> object:
        """End by SIGKILL, all or whoever coordinates."""

    def stop(self) -> object:
        """End all by SIGTERM."""


class Bank:
    """The broker, the tellers, and the orders."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        broker: Brokers,
        *,
        replicas: int = 1,
        stuck_after_s: float | None = None,
    ) -> None:
        """`broker` is started here. Tellers are replaced when nothing was noted for `stuck_after_s`."""
        self._stuck_after_s = stuck_after_s
        self._noted = (-1, 0.0)  # the journal's size, and since when
        self.random = random.Random(seed)
        self.broker = broker
        broker.start()
        self.journal = folder / "journal"
        self.journal.touch()
        self._log = folder / "tellers.log"
        self._tellers: dict[str, subprocess.Popen[bytes]] = {}
        self.orders: list[dict[str, int]] = []
        bootstrap, settings = broker.bootstrap, {"min.insync.replicas": str(min(replicas, 2))}
        create_topic(bootstrap, ORDERS, settings, partitions=ORDER_PARTITIONS, replicas=replicas)
        for topic in LEDGERS:
            create_topic(bootstrap, topic, settings, partitions=PARTITIONS, replicas=replicas)

    def close(self) -> None:
        for teller in self._tellers.values():
            _end(teller)
        self.broker.stop()

    # -- what happens -------------------------------------------------------------------------------

    def order(self, count: int = ORDERS_AT_ONCE) -> None:
        """Order this many transfers; they are in the log when this returns."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "enable.idempotence": True}
        )
        for _ in range(count):
            payer, payee = self.random.sample(range(ACCOUNTS), 2)
            order = {
                "id": len(self.orders),
                "from": payer,
                "to": payee,
                "amount": self.random.randint(1, 100),
            }
            self.orders.append(order)
            producer.produce(ORDERS, json.dumps(order), partition=order["id"] % ORDER_PARTITIONS)
        assert producer.flush(TIMEOUT_S) == 0

    def employ(self, name: str) -> subprocess.Popen[bytes]:
        """Start a teller; it fences any earlier one with this name itself."""
        words = [self.broker.bootstrap, name, str(self.journal)]
        with self._log.open("ab") as log:
            teller = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.bank_teller", *words], stderr=log
            )
        self._tellers[name] = teller
        return teller

    def kill_a_teller(self) -> None:
        name = self.random.choice(TELLERS)
        _end(self._tellers[name])
        self.employ(name)

    def replace_a_teller(self) -> None:
        """A second one of the same transactional id comes: the first must notice that it is fenced, and go."""
        name = self.random.choice(TELLERS)
        former = self._tellers[name]
        self.employ(name)
        try:
            wait_until("the former to go", lambda: self._has_gone(former), timeout_s=TIMEOUT_S)
            assert former.returncode == EXIT_FENCED
        finally:
            _end(former)

    def _has_gone(self, former: subprocess.Popen[bytes]) -> bool:
        """Whether it has; it learns that it is fenced when it has something to do."""
        self.order(ORDER_PARTITIONS)
        return former.poll() is not None

    def a_teller_sleeps_on_its_entries(self) -> None:
        """Others have its partitions when it wakes, so its offsets are refused (KIP-447)."""
        self._sleep(WRITTEN)

    def a_teller_sleeps_on_its_offsets(self) -> None:
        """The next owner of its partitions waits for the end of its transaction, which may still commit (KIP-447)."""
        self._sleep(SENT)

    def _sleep(self, where: str) -> None:
        wait_until("all to be members", lambda: unless_not_now(self._members) == len(TELLERS))
        name = self.random.choice(TELLERS)
        teller = self._tellers[name]
        nap = nap_of(self.journal)
        asleep = f"{where} {name}-{teller.pid}-"
        nap.with_suffix(".new").write_text(f"{where} {name}-{teller.pid}")
        nap.with_suffix(".new").replace(nap)
        wait_until("a teller to fall asleep", lambda: asleep in self._with_orders())
        teller.send_signal(signal.SIGSTOP)
        nap.unlink()
        try:
            wait_until("the group to give it up", lambda: unless_not_now(self._members) == 1)
            time.sleep(1.0)  # so that the other one has asked for the offsets
        finally:
            teller.send_signal(signal.SIGCONT)

    def _with_orders(self) -> str:
        self.order(ORDER_PARTITIONS)
        return self.journal.read_text()

    def _members(self) -> int:
        """How many the group has when it is stable; 0 while it is not."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        found = admin.describe_consumer_groups([GROUP])[GROUP].result(TIMEOUT_S)
        return len(found.members) if found.state is ConsumerGroupState.STABLE else 0

    def kill_the_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def kill_the_broker_and_a_teller(self) -> None:
        self.broker.kill()
        self.kill_a_teller()
        self.broker.start()

    def take_on(self) -> None:
        """Another for who has left, which is for being fenced only (by a time-out while it slept)."""
        for name, teller in tuple(self._tellers.items()):
            if teller.poll() is not None:
                assert teller.returncode == EXIT_FENCED
                self.employ(name)

    def wait_for_commits(self, count: int) -> None:
        """Wait until this many more transactions were committed."""
        wanted = len(self.noted("committed")) + count

        def are_there() -> bool:
            self._look_after_tellers()
            return len(self.noted("committed")) >= wanted

        wait_until("commits", are_there, timeout_s=TIMEOUT_S)

    def _look_after_tellers(self) -> None:
        """Replace those that wait for a coordinator which is dead (librdkafka 5511: docs/limitations.md)."""
        size, now_s = self.journal.stat().st_size, time.monotonic()
        if self._stuck_after_s is None or size != self._noted[0]:
            self._noted = (size, now_s)
        elif now_s - self._noted[1] > self._stuck_after_s:
            self._noted = (size, now_s)
            for name, teller in tuple(self._tellers.items()):
                _end(teller)
                self.employ(name)

    # -- what is to be seen -------------------------------------------------------------------------

    def noted(self, what: str) -> set[str]:
        """The attempts for which a teller noted this; a teller that was killed may have noted nothing."""
        lines = self.journal.read_text().splitlines()
        return {line.split()[1] for line in lines if line.startswith(f"{what} ")}

    def processed(self) -> dict[int, int]:
        """The group's committed offsets."""
        asked = ConsumerGroupTopicPartitions(
            GROUP, [TopicPartition(ORDERS, index) for index in range(ORDER_PARTITIONS)]
        )
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        found = admin.list_consumer_group_offsets([asked])[GROUP].result(TIMEOUT_S)
        return {each.partition: each.offset for each in found.topic_partitions}

    def ordered(self) -> dict[int, int]:
        """What the group's offsets come to when all is done."""
        return dict(Counter(order["id"] % ORDER_PARTITIONS for order in self.orders))

    def wait_until_all_is_done(self) -> None:
        def are_done() -> bool:
            self._look_after_tellers()
            return unless_not_now(self.processed) == self.ordered()

        wait_until("all orders to be carried out", are_done, timeout_s=TIMEOUT_S, every_s=0.3)

    def wait_until_nothing_is_open(self) -> None:
        wait_until(
            "the last stable offsets to reach the ends",
            self._nothing_is_open,
            timeout_s=TIMEOUT_S,
            every_s=0.3,
        )

    def _nothing_is_open(self) -> bool:
        ends = self._ends(IsolationLevel.READ_UNCOMMITTED)
        return self._ends(IsolationLevel.READ_COMMITTED) == ends

    def _ends(self, isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        topics = (*LEDGERS, "__consumer_offsets")
        wanted = {
            TopicPartition(topic, index): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for topic in topics
            for index in range(PARTITIONS)
        }
        found = admin.list_offsets(wanted, isolation_level=isolation)
        return {
            (where.topic, where.partition): future.result(TIMEOUT_S).offset
            for where, future in found.items()
        }

    def entries(self, isolation: str) -> list[dict[str, Any]]:
        """What stands in all ledgers."""
        return list(_read(self.broker.bootstrap, isolation))


def unless_not_now(ask: Callable[[], T]) -> T | None:
    """The answer; None while the broker is not yet what it was before it was killed."""
    try:
        return ask()
    except KafkaException as error:
        if not error.args[0].retriable() and error.args[0].code() not in NOT_NOW:
            raise
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _read(bootstrap: str, isolation: str) -> Iterator[dict[str, Any]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    left: set[Any] = {(topic, index) for topic in LEDGERS for index in range(PARTITIONS)}
    consumer.assign([TopicPartition(*where, OFFSET_BEGINNING) for where in left])
    while left:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"no end of {left}"
        error = message.error()
        if error is None:
            value = message.value()
            assert value is not None
            yield json.loads(value) | {"topic": message.topic()}
        elif error.code() == KafkaError._PARTITION_EOF:
            left -= {(message.topic(), message.partition())}
    consumer.close()


def entries_of(records: Iterable[dict[str, Any]]) -> Entries:
    """How often each change of an account is there, by order."""
    return Counter((each["order"], each["account"], each["change"]) for each in records)


def check(bank: Bank) -> None:
    """Each order is processed once, sums hold, offsets match what was processed, no transaction stays open."""
    bank.wait_until_all_is_done()
    bank.wait_until_nothing_is_open()
    assert bank.processed() == bank.ordered()

    committed = bank.entries("read_committed")
    carried_out = entries_of(committed)
    wanted: Counter[tuple[int, int, int]] = Counter()
    for order in bank.orders:
        wanted[order["id"], order["from"], -order["amount"]] += 1
        wanted[order["id"], order["to"], order["amount"]] += 1
    assert carried_out == wanted, "every transfer once, both sides of it"
    assert sum(entry["change"] for entry in committed) == 0
    assert all(entry["topic"] == ledger_of(entry["account"]) for entry in committed)

    everything = bank.entries("read_uncommitted")
    attempts = {entry["attempt"] for entry in committed}
    tried = {entry["attempt"] for entry in everything}
    aborted = bank.noted("aborted")
    assert bank.noted("committed") <= attempts, "what was said to be committed is"
    assert aborted and not aborted & attempts, "what was said to be aborted is"
    assert aborted <= tried, "who reads everything sees what was aborted"
    assert not bank.noted("given-up") & attempts


def run(bank: Bank, actions: Sequence[Callable[[Bank], None]], rounds: int) -> None:
    """Every mishap once a round, in an order of its own, in the midst of transfers."""
    try:
        for name in TELLERS:
            bank.employ(name)
        for _ in range(rounds):
            for action in bank.random.sample(actions, len(actions)):
                bank.order()
                bank.take_on()
                bank.wait_for_commits(bank.random.randint(1, 4))
                action(bank)
        bank.order()
        check(bank)
    finally:
        bank.close()
