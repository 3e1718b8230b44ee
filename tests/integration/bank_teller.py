"""A teller of the bank test: a process that carries out transfer orders, each batch of them in one transaction.

It reads orders as a member of a group, writes a debit and a credit for each into the topics of the two accounts, and
sends the offsets of the orders with the transaction. Now and then it aborts a written batch and begins it again. It
notes what it did, line by line, in its journal. It may be killed anywhere, and sleeps where a file `<journal>.nap`
says so.

    python -m tests.integration.bank_teller <bootstrap> <transactional id> <journal>
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

ORDERS, GROUP = "orders", "bank"
LEDGERS = ("ledger-0", "ledger-1", "ledger-2")
BATCH = 8
PATIENCE_S = 2.0
TRANSACTION_TIMEOUT_MS = 20_000
SESSION_TIMEOUT_MS = 3_000
EXIT_FENCED = 3
# Where a teller may sleep: after its entries are written, or after its offsets are sent, too.
WRITTEN, SENT = "written", "sent"
NAP_S = 2.0


class MustAbort(Exception):
    """The transaction cannot be committed any more."""


class TellerFenced(Exception):
    """There is a newer teller of this transactional id."""


@contextlib.contextmanager
def judged() -> Iterator[None]:
    """Turn an error of librdkafka into what it means for the transaction: `MustAbort` or `TellerFenced`."""
    try:
        yield
    except KafkaException as refused:
        error: KafkaError = refused.args[0]
        if error.fatal():
            raise TellerFenced from refused
        if error.txn_requires_abort():
            raise MustAbort from refused
        raise


def nap_of(journal: Path) -> Path:
    """The file that says where the teller with this journal shall sleep."""
    return journal.with_suffix(".nap")


def ledger_of(account: int) -> str:
    """The topic of an account."""
    return LEDGERS[account % len(LEDGERS)]


class Teller:
    """One consumer, one transactional producer."""

    def __init__(self, bootstrap: str, transactional_id: str, journal: Path) -> None:
        self._journal = journal.open("a")
        self._nap = nap_of(journal)
        self._name = f"{transactional_id}-{os.getpid()}"
        self._due: dict[tuple[str, int], int] = {}  # the next order of each partition that is ours
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 500,
                # Otherwise librdkafka forgets a single broker that is down, and waits for ever for the group's
                # coordinator, which it remembers (librdkafka 5511).
                "metadata.recovery.strategy": "none",
                "linger.ms": 1,
            }
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 300,
                "reconnect.backoff.max.ms": 500,
            }
        )

    def run(self) -> None:
        """Carry out orders until the process is killed or a newer teller fences it."""
        self._insist(self._producer.init_transactions)
        self._consumer.subscribe([ORDERS], on_assign=self._given, on_revoke=self._taken)
        for number in itertools.count():
            orders = self._next_orders()
            if orders:
                try:
                    self._carry_out(f"{self._name}-{number}", orders)
                except TellerFenced:
                    self._consumer.close()
                    return

    # -- orders -------------------------------------------------------------------------------------

    def _given(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._due.clear()
        self._go_back(partitions)
        consumer.assign([TopicPartition(*key, due) for key, due in self._due.items()])

    def _taken(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._due.clear()

    def _go_back(self, partitions: list[TopicPartition]) -> None:
        """Go back to the committed offsets; the broker answers when no open transaction can change them."""
        found = self._insist(lambda seconds: self._consumer.committed(partitions, seconds))
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
            self._due[each.topic, each.partition] = max(each.offset, 0)

    def _next_orders(self) -> list[Any]:
        """The next orders of the partitions that are ours when this returns: none twice, none left out."""
        read = [m for m in self._consumer.consume(BATCH, timeout=0.3) if m.error() is None]
        orders = []
        for message in read:
            key = message.topic(), message.partition()
            if self._due.get(key) == message.offset():
                self._due[key] += 1
                orders.append(message)
        return orders

    def _begin_again(self) -> None:
        partitions = self._consumer.assignment()
        self._due.clear()
        if not partitions:
            return
        self._go_back(partitions)
        for key, due in self._due.items():
            self._consumer.seek(TopicPartition(*key, due))

    # -- transactions -------------------------------------------------------------------------------

    def _carry_out(self, attempt: str, orders: list[Any]) -> None:
        with judged():
            self._producer.begin_transaction()
        try:
            self._write(attempt, orders)
            if zlib.crc32(attempt.encode()) % 4 == 0:
                raise MustAbort
            self._insist(self._producer.commit_transaction)
            self._note("committed", attempt)
        except MustAbort:
            with judged():
                is_written = self._producer.flush(PATIENCE_S) == 0
            self._insist(self._producer.abort_transaction)
            self._note("aborted" if is_written else "given-up", attempt)
            self._begin_again()

    def _write(self, attempt: str, orders: list[Any]) -> None:
        with judged():
            for message in orders:
                self._write_one(attempt, json.loads(message.value()))
            if self._producer.flush(5 * PATIENCE_S):
                raise MustAbort
        offsets = [TopicPartition(topic, index, due) for (topic, index), due in self._due.items()]
        mine = self._consumer.consumer_group_metadata()
        self._may_sleep(WRITTEN, attempt)
        self._insist(
            lambda seconds: self._producer.send_offsets_to_transaction(offsets, mine, seconds)
        )
        self._may_sleep(SENT, attempt)

    def _write_one(self, attempt: str, order: dict[str, int]) -> None:
        amount = order["amount"]
        for account, change in ((order["from"], -amount), (order["to"], amount)):
            entry = {"order": order["id"], "account": account, "change": change}
            self._producer.produce(
                ledger_of(account), json.dumps(entry | {"attempt": attempt}), key=str(account)
            )

    def _insist(self, ask: Callable[[float], Any]) -> Any:
        """Repeat a call while its error is retriable."""
        while True:
            with judged():
                try:
                    return ask(PATIENCE_S)
                except KafkaException as refused:
                    error: KafkaError = refused.args[0]
                    if not error.retriable() and error.code() not in _NOT_NOW:
                        raise

    def _may_sleep(self, where: str, attempt: str) -> None:
        """Sleep here if the nap file says so, so that the test has time to stop the process at this point."""
        if self._nap.exists() and self._nap.read_text() == f"{where} {self._name}":
            self._note(where, attempt)
            time.sleep(NAP_S)

    def _note(self, what: str, attempt: str) -> None:
        self._journal.write(f"{what} {attempt}\n")
        self._journal.flush()


_NOT_NOW = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


if __name__ == "__main__":
    Teller(sys.argv[1], sys.argv[2], Path(sys.argv[3])).run()
    sys.exit(EXIT_FENCED)
