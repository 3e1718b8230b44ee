"""The broker dies between a decision and its markers; the next start completes the transaction, asked or not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from kafka_ds.protocol.errors import ErrorCode
from tests.clients.transactional_reads import read_committed
from tests.integration.transactional_client import TransactionalClient
from tests.processes import BrokerDied, BrokerProcess, wait_until
from tests.topics import create_topic

TOPIC, X, GROUP = "t", "x", "g"
PARTITIONS = 2
# Those of the topic, and that of the group's offsets, which comes first.
MARKERS = PARTITIONS + 1
SETTINGS = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 3}
BEFORE, DECIDED, AFTER, NO_OFFSET = 10, 20, 30, -1
# Between each two steps of an end; the first transaction passes each of them, too.
STEPS = {
    "the decision": "after_prepare:2",
    **{f"marker {i}": f"after_marker:{MARKERS + i}" for i in range(1, MARKERS + 1)},
    "all markers": "after_markers:2",
}


def kill_at_the_end(broker: BrokerProcess, *, committed: bool, second: bool) -> None:
    """A transaction that commits, and one whose end kills the broker; both with offsets of a group."""
    create_topic(broker.bootstrap, TOPIC, partitions=PARTITIONS)
    client = TransactionalClient(broker.bootstrap, X, TOPIC, second=second)
    client.find_coordinator(0, GROUP)
    client.begin()
    for value, offset in ((b"before", BEFORE), (b"decided", DECIDED)):
        if not second:
            assert client.add(*range(PARTITIONS)) is ErrorCode.NONE
        for partition in range(PARTITIONS):
            assert client.write([value], partition) is ErrorCode.NONE
        assert client.send_offset(GROUP, offset) is ErrorCode.NONE
        if offset == BEFORE:
            assert client.end(committed=True) is ErrorCode.NONE
            assert client.committed_offset(GROUP, stable=True) == BEFORE
        else:
            unstable = client.committed_offset(GROUP, stable=True)
            assert unstable is ErrorCode.UNSTABLE_OFFSET_COMMIT
            with pytest.raises((ConnectionError, OSError)):
                client.end(committed=committed)
    client.close()
    wait_until("the broker to be dead", lambda: not broker.running())
    broker.stop()


def check_the_end(broker: BrokerProcess, *, committed: bool) -> None:
    """Nobody asks, and the transaction comes to its end; records and offsets count together or not at all."""
    asks = TransactionalClient(broker.bootstrap, X, TOPIC)
    complete = "CompleteCommit" if committed else "CompleteAbort"
    wait_until("the end", lambda: asks.state() == complete)
    expected = [b"before", b"decided"] if committed else [b"before"]
    assert read_committed["librdkafka"](broker.bootstrap, TOPIC) == expected
    assert asks.committed_offset(GROUP, stable=True) == (DECIDED if committed else BEFORE)
    asks.begin()
    assert asks.add(0) is ErrorCode.NONE
    assert asks.write([b"after"]) is ErrorCode.NONE
    assert asks.send_offset(GROUP, AFTER) is ErrorCode.NONE
    assert asks.end(committed=True) is ErrorCode.NONE
    assert read_committed["librdkafka"](broker.bootstrap, TOPIC) == [*expected, b"after"]
    assert asks.committed_offset(GROUP, stable=True) == AFTER
    asks.close()


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_decision_outlives_the_broker(tmp_path: Path, step: str, committed: bool) -> None:
    broker = BrokerProcess(tmp_path, SETTINGS, {"KAFKA_DS_CRASH_AT": STEPS[step]}).start()
    try:
        # Both protocols, each with each outcome.
        second = (list(STEPS).index(step) % 2 == 0) == committed
        kill_at_the_end(broker, committed=committed, second=second)
        broker.environment = {}
        broker.start()
        check_the_end(broker, committed=committed)
    finally:
        broker.stop()


def test_a_decision_outlives_a_broker_that_dies_again(tmp_path: Path) -> None:
    """Also what a start does to complete it may be cut off anywhere, and begins again with the next."""
    broker = BrokerProcess(tmp_path, SETTINGS, {"KAFKA_DS_CRASH_AT": STEPS["the decision"]})
    broker.start()
    try:
        kill_at_the_end(broker, committed=True, second=False)
        for point in ("after_marker:1", "after_marker:2", "after_markers:1"):
            broker.environment = {"KAFKA_DS_CRASH_AT": point}
            with suppress(BrokerDied):
                broker.start()
            wait_until("the broker to be dead", lambda: not broker.running())
            broker.stop()
        broker.environment = {}
        broker.start()
        check_the_end(broker, committed=True)
    finally:
        broker.stop()


def test_an_open_transaction_outlives_the_broker_and_times_out(tmp_path: Path) -> None:
    overrides = {
        **SETTINGS,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    }
    broker = BrokerProcess(tmp_path, overrides).start()
    try:
        create_topic(broker.bootstrap, TOPIC)
        goes_on = TransactionalClient(broker.bootstrap, X, TOPIC)
        hangs = TransactionalClient(broker.bootstrap, "y", TOPIC)
        goes_on.find_coordinator(0, GROUP)
        for client, timeout_ms, value in ((goes_on, 60_000, b"x"), (hangs, 2_000, b"y")):
            client.begin(timeout_ms=timeout_ms)
            assert client.add(0) is ErrorCode.NONE
            assert client.write([value]) is ErrorCode.NONE
            assert client.send_offset(f"{GROUP}-{value.decode()}", DECIDED) is ErrorCode.NONE
            client.close()
        broker.kill()
        broker.start()
        again = TransactionalClient(broker.bootstrap, X, TOPIC)
        again.producer_id, again.epoch, again.sequences = goes_on.producer_id, 0, {0: 1}
        assert again.state() == "Ongoing"
        unstable = again.committed_offset(f"{GROUP}-x", stable=True)
        assert unstable is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert again.write([b"x1"]) is ErrorCode.NONE
        assert again.end(committed=True) is ErrorCode.NONE
        late = TransactionalClient(broker.bootstrap, "y", TOPIC)
        wait_until("the time-out", lambda: late.state() == "CompleteAbort")
        late.producer_id, late.epoch = hangs.producer_id, hangs.epoch
        assert late.write([b"y1"]) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert late.end(committed=True) is ErrorCode.PRODUCER_FENCED
        assert read_committed["librdkafka"](broker.bootstrap, TOPIC) == [b"x", b"x1"]
        assert again.committed_offset(f"{GROUP}-x", stable=True) == DECIDED
        assert late.committed_offset(f"{GROUP}-y", stable=True) == NO_OFFSET
        again.close()
        late.close()
    finally:
        broker.stop()
