"""The broker dies between a decision and its end; what was decided is completed by the next start, asked or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.tier.crash_points import TRANSACTION_POINTS
from kafka_ds.wire.errors import ErrorCode
from tests.clients.topics import create_topic
from tests.clients.transactional_reads import read_committed
from tests.integration.transactional_client import TransactionalClient
from tests.processes import BrokerProcess, wait_until

TOPIC, X = "t", "x"
PARTITIONS = 2


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_a_decision_outlives_the_broker(tmp_path: Path, point: str, committed: bool) -> None:
    # The first transaction passes every point once, and markers once for each partition.
    nth = {"after_marker": PARTITIONS + 1}.get(point, 2)
    crash_at = {"KAFKA_DS_CRASH_AT": f"{point}:{nth}"}
    overrides = {"transaction.state.log.num.partitions": 3}
    broker = BrokerProcess(tmp_path, overrides, crash_at).start()
    try:
        create_topic(broker.bootstrap, TOPIC, partitions=PARTITIONS)
        client = TransactionalClient(broker.bootstrap, X, TOPIC)
        client.begin()
        for value, commits in ((b"before", True), (b"decided", committed)):
            assert client.add(*range(PARTITIONS)) is ErrorCode.NONE
            for partition in range(PARTITIONS):
                assert client.write([value], partition) is ErrorCode.NONE
            if value == b"before":
                assert client.end(committed=commits) is ErrorCode.NONE
            else:
                with pytest.raises((ConnectionError, OSError)):
                    client.end(committed=commits)
        client.close()
        wait_until("the broker to be dead", lambda: not broker.running())
        broker.stop()
        broker.environment = {}
        broker.start()
        asks = TransactionalClient(broker.bootstrap, X, TOPIC)
        complete = "CompleteCommit" if committed else "CompleteAbort"
        wait_until("the end", lambda: asks.state() == complete)
        expected = [b"before", b"decided"] if committed else [b"before"]
        assert read_committed["librdkafka"](broker.bootstrap, TOPIC) == expected
        asks.begin()
        assert asks.add(0) is ErrorCode.NONE
        assert asks.write([b"after"]) is ErrorCode.NONE
        assert asks.end(committed=True) is ErrorCode.NONE
        assert read_committed["librdkafka"](broker.bootstrap, TOPIC) == [*expected, b"after"]
        asks.close()
    finally:
        broker.stop()


def test_an_open_transaction_outlives_the_broker_and_times_out(tmp_path: Path) -> None:
    overrides = {
        "transaction.state.log.num.partitions": 3,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    }
    broker = BrokerProcess(tmp_path, overrides).start()
    try:
        create_topic(broker.bootstrap, TOPIC)
        goes_on = TransactionalClient(broker.bootstrap, X, TOPIC)
        hangs = TransactionalClient(broker.bootstrap, "y", TOPIC)
        for client, timeout_ms, value in ((goes_on, 60_000, b"x"), (hangs, 2_000, b"y")):
            client.begin(timeout_ms=timeout_ms)
            assert client.add(0) is ErrorCode.NONE
            assert client.write([value]) is ErrorCode.NONE
            client.close()
        broker.kill()
        broker.start()
        again = TransactionalClient(broker.bootstrap, X, TOPIC)
        again.producer_id, again.epoch, again._sequences = goes_on.producer_id, 0, {0: 1}
        assert again.state() == "Ongoing"
        assert again.write([b"x1"]) is ErrorCode.NONE
        assert again.end(committed=True) is ErrorCode.NONE
        late = TransactionalClient(broker.bootstrap, "y", TOPIC)
        wait_until("the time-out", lambda: late.state() == "CompleteAbort")
        late.producer_id, late.epoch = hangs.producer_id, hangs.epoch
        assert late.write([b"y1"]) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert late.end(committed=True) is ErrorCode.PRODUCER_FENCED
        assert read_committed["librdkafka"](broker.bootstrap, TOPIC) == [b"x", b"x1"]
        again.close()
        late.close()
    finally:
        broker.stop()
