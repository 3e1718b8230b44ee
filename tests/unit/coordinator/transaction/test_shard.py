"""The machine of transactions: every request in every state, repeats, fencing, epochs that run out, time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.coordinator.result import CoordinatorResult, Instant, ProducerIdAndEpoch
from broker.coordinator.transaction.shard import NeedsProducerId, TransactionCoordinatorShard
from broker.coordinator.transaction.transaction_metadata import (
    BY_NAME,
    BY_NUMBER,
    EPOCH_MAX,
    VALID_PREVIOUS,
    TransactionState,
    WriteMarkers,
    decode_record,
    encode_record,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.messages.persisted_transactions import TransactionLogKey, encode_key
from tests.unit.coordinator.transaction.transaction_desk import (
    ME,
    NOW,
    P0,
    P1,
    SETTINGS,
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
    state_of,
)

# -- states and records -----------------------------------------------------------------------------


def test_states_have_kafkas_numbers_and_names() -> None:
    assert [BY_NUMBER[n].shown for n in range(8)] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
    assert set(BY_NAME.values()) == set(S)


@pytest.mark.parametrize("before", S)
@pytest.mark.parametrize("after", S)
def test_a_state_follows_only_what_it_may(
    before: TransactionState, after: TransactionState
) -> None:
    if before in VALID_PREVIOUS[after]:
        assert in_state(before).transition_to(after).state is after
    else:
        with pytest.raises(AssertionError):
            in_state(before).transition_to(after)


@pytest.mark.parametrize("state", [s for s in S if s.number < 6])
def test_a_transaction_comes_back_from_its_record(state: TransactionState) -> None:
    transaction = in_state(
        state,
        previous_producer_id=4,
        next_producer_id=9,
        client_transaction_version=2,
        updated_ms=NOW + 1,
    )
    assert decode_record(*encode_record(X, transaction)) == (X, transaction)
    assert decode_record(encode_key(TransactionLogKey(transactional_id=X)), None) == (X, None)


# -- InitProducerId ---------------------------------------------------------------------------------


def test_a_new_transactional_id_gets_a_new_producer() -> None:
    shard = shard_with()
    with pytest.raises(NeedsProducerId):
        init(shard, spare_producer_id=None)
    assert len(shard) == 0
    assert init(shard) == ProducerIdAndEpoch(50, 0)
    assert state_of(shard) is S.EMPTY


@pytest.mark.parametrize("timeout_ms", [0, -1, SETTINGS.transaction_max_timeout_ms + 1])
def test_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    with pytest.raises(KafkaError) as error:
        init(shard_with(), timeout_ms=timeout_ms)
    assert code_of(error) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_two_phase_commit_has_to_be_enabled() -> None:
    for asked, expected in (
        ({"two_phase_commit": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared": True}, ErrorCode.UNSUPPORTED_VERSION),
    ):
        with pytest.raises(KafkaError) as error:
            init(shard_with(), **asked)
        assert code_of(error) is expected


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_beginning_anew_raises_the_epoch(state: TransactionState) -> None:
    shard = shard_with(in_state(state))
    assert init(shard) == ProducerIdAndEpoch(7, 4)
    assert state_of(shard) is S.EMPTY


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_while_markers_are_written_everything_must_wait(state: TransactionState) -> None:
    shard = shard_with(in_state(state))
    for ask in (
        lambda: init(shard),
        lambda: shard.add_partitions(X, ME, [P1], now_ms=NOW, client_transaction_version=V1),
        lambda: shard.verify(X, ME, P0),
    ):
        with pytest.raises(KafkaError) as error:
            ask()
        assert code_of(error) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_who_begins_anew_aborts_what_is_open_first() -> None:
    shard = shard_with(in_state(S.ONGOING))
    result = shard.init_producer_id(X, TIMEOUT_MS, None, now_ms=NOW)
    assert isinstance(result.response, KafkaError)
    assert result.response.code is ErrorCode.CONCURRENT_TRANSACTIONS
    apply(shard, result)
    decided = shard.find(X)
    assert decided is not None
    assert (decided.state, decided.producer_epoch) == (S.PREPARE_ABORT, 4)
    assert result.effects == (WriteMarkers(transaction=decided),)
    with pytest.raises(KafkaError) as error:
        end(shard, committed=True)
    assert code_of(error) is ErrorCode.PRODUCER_FENCED
    complete(shard)
    assert state_of(shard) is S.COMPLETE_ABORT
    assert init(shard) == ProducerIdAndEpoch(7, 5)


def test_a_producer_that_goes_on_after_an_error_is_not_fenced_by_its_repeat() -> None:
    shard = shard_with(in_state(S.COMPLETE_ABORT))
    assert init(shard, ME) == ProducerIdAndEpoch(7, 4)
    assert init(shard, ME) == ProducerIdAndEpoch(7, 4), "the first answer was lost"
    assert init(shard, ProducerIdAndEpoch(7, 4)) == ProducerIdAndEpoch(7, 5)
    with pytest.raises(KafkaError) as error:
        init(shard, ME)
    assert code_of(error) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("epoch", "following"), [(3, (7, 4)), (EPOCH_MAX - 1, (50, 0))], ids=["next", "last"]
)
def test_a_producer_that_aborts_by_going_on_is_known_when_it_asks_again(
    epoch: int, following: tuple[int, int]
) -> None:
    """It is told to ask again, and asks the same: it was fenced by its own first request."""
    me = ProducerIdAndEpoch(7, epoch)
    shard = shard_with(in_state(S.ONGOING, producer_epoch=epoch))
    assert init(shard, me).code is ErrorCode.CONCURRENT_TRANSACTIONS
    complete(shard)
    for _ in range(2):
        assert init(shard, me) == following


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT])
@pytest.mark.parametrize("old", [ProducerIdAndEpoch(7, 1), ProducerIdAndEpoch(6, 3)])
def test_an_instance_of_long_ago_is_fenced(
    state: TransactionState, old: ProducerIdAndEpoch
) -> None:
    shard = shard_with(in_state(state))
    with pytest.raises(KafkaError) as error:
        init(shard, old)
    assert code_of(error) is ErrorCode.PRODUCER_FENCED
    assert state_of(shard) is state


def test_a_producer_whose_epochs_are_used_up_gets_another_id() -> None:
    last = in_state(S.COMPLETE_COMMIT, producer_epoch=EPOCH_MAX - 1)
    shard = shard_with(last)
    with pytest.raises(NeedsProducerId):
        init(shard, spare_producer_id=None)
    assert init(shard) == ProducerIdAndEpoch(50, 0)
    found = shard.find(X)
    assert found is not None
    assert found.previous_producer_id == 7


def test_a_repeat_after_the_change_of_ids_is_answered_alike() -> None:
    me = ProducerIdAndEpoch(7, EPOCH_MAX - 1)
    shard = shard_with(in_state(S.COMPLETE_COMMIT, producer_epoch=EPOCH_MAX - 1))
    assert init(shard, me) == ProducerIdAndEpoch(50, 0)
    assert init(shard, me, spare_producer_id=51) == ProducerIdAndEpoch(50, 0)


def test_the_last_epoch_is_there_for_fencing() -> None:
    shard = shard_with(in_state(S.ONGOING, producer_epoch=EPOCH_MAX - 1))
    init(shard)
    found = shard.find(X)
    assert found is not None
    assert (found.state, found.producer_epoch) == (S.PREPARE_ABORT, EPOCH_MAX)
    complete(shard)
    assert init(shard) == ProducerIdAndEpoch(50, 0)


# -- partitions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_transaction_begins_with_its_first_partition(state: TransactionState) -> None:
    shard = shard_with(in_state(state, started_ms=5))
    apply(shard, shard.add_partitions(X, ME, [P0], now_ms=NOW + 9, client_transaction_version=V1))
    found = shard.find(X)
    assert found is not None
    assert (found.state, found.started_ms) == (S.ONGOING, NOW + 9)
    apply(shard, shard.add_partitions(X, ME, [P0], now_ms=NOW + 20, client_transaction_version=V1))
    assert shard.find(X) == found
    apply(shard, shard.add_partitions(X, ME, [P1], now_ms=NOW + 99, client_transaction_version=V1))
    found = shard.find(X)
    assert found is not None
    assert (found.partitions, found.started_ms) == ({P0, P1}, NOW + 9)


@pytest.mark.parametrize(
    ("who", "code"),
    [
        (ProducerIdAndEpoch(8, 3), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdAndEpoch(7, 2), ErrorCode.PRODUCER_FENCED),
        (ProducerIdAndEpoch(7, 4), ErrorCode.PRODUCER_FENCED),
    ],
)
def test_only_the_present_producer_speaks(who: ProducerIdAndEpoch, code: ErrorCode) -> None:
    shard = shard_with(in_state(S.ONGOING))
    for ask in (
        lambda: shard.add_partitions(X, who, [P1], now_ms=NOW, client_transaction_version=V1),
        lambda: shard.verify(X, who, P0),
        lambda: end(shard, committed=True, who=who),
    ):
        with pytest.raises(KafkaError) as error:
            ask()
        assert code_of(error) is code


def test_nobody_speaks_for_what_nobody_knows() -> None:
    shard = shard_with()
    for ask in (
        lambda: shard.add_partitions(X, ME, [P1], now_ms=NOW, client_transaction_version=V1),
        lambda: end(shard, committed=True),
    ):
        with pytest.raises(KafkaError) as error:
            ask()
        assert code_of(error) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_partition_that_was_not_added_is_not_verified() -> None:
    shard = shard_with(in_state(S.ONGOING))
    shard.verify(X, ME, P0)
    with pytest.raises(KafkaError) as error:
        shard.verify(X, ME, P1)
    assert code_of(error) is ErrorCode.TRANSACTION_ABORTABLE


# -- EndTxn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_a_decision_is_completed_when_its_markers_are_written(committed: bool) -> None:
    shard = shard_with(in_state(S.ONGOING))
    result = shard.end(X, ME, committed=committed, client_transaction_version=V1, now_ms=NOW)
    assert apply(shard, result) == ME
    decided = shard.find(X)
    assert decided is not None
    assert decided.state is (S.PREPARE_COMMIT if committed else S.PREPARE_ABORT)
    assert result.effects == (WriteMarkers(transaction=decided),)
    assert shard.loaded(Instant(NOW, 0)).effects == (WriteMarkers(transaction=decided),), (
        "after a crash, too"
    )
    complete(shard)
    assert state_of(shard) is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
    assert not shard.loaded(Instant(NOW, 0)).effects
    assert shard.markers_written(decided, NOW) == CoordinatorResult(), "once"


NONE, INVALID, CONCURRENT = (
    ErrorCode.NONE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


@pytest.mark.parametrize(
    ("state", "on_commit", "on_abort"),
    [
        (S.EMPTY, INVALID, INVALID),
        (S.PREPARE_COMMIT, CONCURRENT, CONCURRENT),
        (S.PREPARE_ABORT, CONCURRENT, CONCURRENT),
        (S.COMPLETE_COMMIT, NONE, INVALID),
        (S.COMPLETE_ABORT, INVALID, NONE),
    ],
)
def test_what_was_decided_is_said_again(
    state: TransactionState, on_commit: ErrorCode, on_abort: ErrorCode
) -> None:
    for committed, code in ((True, on_commit), (False, on_abort)):
        shard = shard_with(in_state(state))
        if code is NONE:
            assert end(shard, committed) == ME
        else:
            with pytest.raises(KafkaError) as error:
                end(shard, committed)
            assert code_of(error) is code
        assert state_of(shard) is state


# -- EndTxn with an epoch for each transaction (KIP-890) ----------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_each_end_raises_the_epoch(committed: bool) -> None:
    shard = shard_with(in_state(S.ONGOING))
    assert end(shard, committed, V2) == ProducerIdAndEpoch(7, 4)
    with pytest.raises(KafkaError) as error:
        end(shard, committed, V2)
    assert code_of(error) is CONCURRENT
    complete(shard)
    assert end(shard, committed, V2) == ProducerIdAndEpoch(7, 4), "the first answer was lost"
    with pytest.raises(KafkaError) as error:
        end(shard, not committed, V2)
    assert code_of(error) is INVALID


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_nothing_can_be_aborted_but_not_committed(state: TransactionState) -> None:
    shard = shard_with(in_state(state))
    with pytest.raises(KafkaError) as error:
        end(shard, True, V2)
    assert code_of(error) is INVALID
    assert end(shard, False, V2) == ProducerIdAndEpoch(7, 4)
    assert state_of(shard) is S.PREPARE_ABORT
    complete(shard)
    assert state_of(shard) is S.COMPLETE_ABORT


def test_who_aborts_before_the_last_end_is_complete_asks_again() -> None:
    """None of its writes was taken yet. INVALID_TXN_STATE would end its producer for good."""
    shard = shard_with(in_state(S.ONGOING))
    assert end(shard, True, V2) == (next_one := ProducerIdAndEpoch(7, 4))
    with pytest.raises(KafkaError) as error:
        shard.end(X, next_one, committed=False, client_transaction_version=V2, now_ms=NOW)
    assert code_of(error) is CONCURRENT
    complete(shard)
    aborted = shard.end(X, next_one, committed=False, client_transaction_version=V2, now_ms=NOW)
    assert apply(shard, aborted) == ProducerIdAndEpoch(7, 5)


@pytest.mark.parametrize("version", [V1, V2])
def test_nothing_is_granted_out_of_memory(version: int) -> None:
    """A former coordinator, which cannot write, confirmed the end of a transaction of which it had never heard."""
    shard = shard_with(in_state(S.ONGOING))
    again = shard.add_partitions(X, ME, [P0], now_ms=NOW, client_transaction_version=version)
    assert again.records == ((X, shard.find(X)),)
    end(shard, True, version)
    complete(shard)
    again = shard.end(X, ME, committed=True, client_transaction_version=version, now_ms=NOW)
    assert again.records == ((X, shard.find(X)),)


def test_a_repeat_cannot_end_the_next_transaction() -> None:
    shard = shard_with(in_state(S.ONGOING))
    end(shard, True, V2)
    complete(shard)
    next_one = ProducerIdAndEpoch(7, 4)
    apply(shard, shard.add_partitions(X, next_one, [P1], now_ms=NOW, client_transaction_version=V2))
    with pytest.raises(KafkaError) as error:
        end(shard, True, V2)
    assert code_of(error) is ErrorCode.PRODUCER_FENCED
    assert state_of(shard) is S.ONGOING


@pytest.mark.parametrize("committed", [True, False])
def test_who_was_fenced_is_no_repeat(committed: bool) -> None:
    shard = shard_with(in_state(S.ONGOING, client_transaction_version=V2))
    assert isinstance(init(shard), KafkaError)
    complete(shard)
    with pytest.raises(KafkaError) as error:
        end(shard, committed, V2)
    assert code_of(error) is ErrorCode.PRODUCER_FENCED


def test_an_end_at_the_last_epoch_changes_the_producer_id() -> None:
    me = ProducerIdAndEpoch(7, EPOCH_MAX - 1)
    shard = shard_with(in_state(S.ONGOING, producer_epoch=EPOCH_MAX - 1))
    with pytest.raises(NeedsProducerId):
        shard.end(X, me, committed=True, client_transaction_version=V2, now_ms=NOW)
    assert end(shard, True, V2, me) == ProducerIdAndEpoch(50, 0)
    decided = shard.find(X)
    assert decided is not None
    assert (decided.producer_id, decided.producer_epoch) == (7, EPOCH_MAX)
    # What a crash leaves is enough to go on.
    restarted = TransactionCoordinatorShard(SETTINGS)
    record = decode_record(*encode_record(X, decided))
    assert record is not None
    restarted.replay(*record)
    complete(restarted)
    found = restarted.find(X)
    assert found is not None
    assert (found.producer_id, found.producer_epoch, found.previous_producer_id) == (50, 0, 7)
    assert end(restarted, True, V2, me) == ProducerIdAndEpoch(50, 0), "the first answer was lost"


@pytest.mark.parametrize("committed", [True, False])
def test_markers_are_of_the_protocol_of_who_ends(committed: bool) -> None:
    shard = shard_with(in_state(S.ONGOING, client_transaction_version=V2))
    end(shard, committed, V1)
    decided = shard.find(X)
    assert decided is not None
    assert (decided.producer_epoch, decided.client_transaction_version) == (ME.producer_epoch, V1)


# -- time -------------------------------------------------------------------------------------------


def test_what_is_open_for_too_long_is_aborted_under_a_new_epoch() -> None:
    shard = shard_with(in_state(S.ONGOING))
    assert list(shard.timed_out(NOW + TIMEOUT_MS)) == []
    (result,) = shard.timed_out(NOW + TIMEOUT_MS + 1)
    apply(shard, result)
    found = shard.find(X)
    assert found is not None
    assert (found.state, found.producer_epoch) == (S.PREPARE_ABORT, ME.producer_epoch + 1)
    assert list(shard.timed_out(NOW + 10 * TIMEOUT_MS)) == []


@pytest.mark.parametrize("state", [s for s in S if s.number < 6])
def test_what_nobody_uses_is_forgotten_but_never_what_is_open(state: TransactionState) -> None:
    shard = shard_with(in_state(state))
    due = NOW + SETTINGS.transactional_id_expiration_ms
    assert list(shard.expired(due - 1)) == []
    for result in shard.expired(due):
        assert result.records == ((X, None),)
        apply(shard, result)
    assert len(shard) == (0 if state.may_expire else 1)


def test_a_later_transaction_is_not_completed_by_the_markers_of_an_earlier() -> None:
    shard = shard_with(in_state(S.PREPARE_COMMIT))
    other = replace(in_state(S.PREPARE_COMMIT), producer_epoch=1)
    assert shard.markers_written(other, NOW) == CoordinatorResult()
    assert state_of(shard) is S.PREPARE_COMMIT
