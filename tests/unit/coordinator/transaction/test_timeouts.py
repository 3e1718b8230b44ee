"""Who is told what after a transaction that has timed out: the machine by itself."""

from __future__ import annotations

from typing import Any

import pytest

from broker.config.broker import BrokerConfig
from broker.coordinator.result import ProducerIdAndEpoch
from broker.coordinator.transaction.shard import TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import (
    EPOCH_MAX,
    decode_record,
    encode_record,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from tests.unit.coordinator.transaction.transaction_desk import (
    ME,
    NOW,
    P0,
    TIMEOUT_MS,
    V1,
    V2,
    S,
    X,
    apply,
    code_of,
    complete,
    end,
    in_state,
    init,
    shard_with,
)


def timed_out(**changes: Any) -> TransactionCoordinatorShard:
    shard = shard_with(in_state(S.ONGOING, **changes))
    for result in shard.timed_out(NOW + TIMEOUT_MS + 1):
        apply(shard, result)
    complete(shard)
    return shard


@pytest.mark.parametrize("asked_ms", [0, TIMEOUT_MS])
def test_two_phase_commit_has_no_timeout_also_after_a_restart(asked_ms: int) -> None:
    shard = TransactionCoordinatorShard(BrokerConfig(transaction_two_phase_commit_enable=True))
    who = init(shard, timeout_ms=asked_ms, two_phase_commit=True)
    apply(shard, shard.add_partitions(X, who, [P0], now_ms=NOW, client_transaction_version=V2))
    prepared = shard.find(X)
    assert prepared is not None
    _, read_again = decode_record(*encode_record(X, prepared)) or (X, None)
    late_ms = NOW + 2**31 + 1
    assert not list(shard_with(read_again).timed_out(late_ms))
    assert end(shard, True, V2, who) == ProducerIdAndEpoch(who.producer_id, 1)


def test_who_was_too_slow_goes_on_under_the_next_epoch() -> None:
    """As in Kafka 4.3 (KIP-588, KIP-890): by InitProducerId, or as the answer to the abort."""
    following = ProducerIdAndEpoch(7, ME.producer_epoch + 1)
    assert init(timed_out(), ME) == following
    assert end(timed_out(client_transaction_version=V2), False, V2) == following
    refused = ((V1, False, ErrorCode.PRODUCER_FENCED), (V2, True, ErrorCode.INVALID_TXN_STATE))
    for version, committed, expected in refused:
        with pytest.raises(KafkaError) as error:
            end(timed_out(client_transaction_version=version), committed, version)
        assert code_of(error) is expected


def test_who_was_too_slow_for_a_successor_is_fenced() -> None:
    shard = timed_out(client_transaction_version=V2)
    assert init(shard) == ProducerIdAndEpoch(7, ME.producer_epoch + 2)
    with pytest.raises(KafkaError) as ended:
        end(shard, False, V2)
    with pytest.raises(KafkaError) as begun:
        init(shard, ME)
    assert code_of(ended) is code_of(begun) is ErrorCode.PRODUCER_FENCED


def test_who_was_too_slow_at_the_last_epoch_gets_another_id() -> None:
    me = ProducerIdAndEpoch(7, EPOCH_MAX - 1)
    shard = timed_out(producer_epoch=me.producer_epoch, client_transaction_version=V2)
    with pytest.raises(KafkaError) as error:
        end(shard, False, V2, me)
    assert code_of(error) is ErrorCode.PRODUCER_FENCED
    assert init(shard, me) == ProducerIdAndEpoch(50, 0)
