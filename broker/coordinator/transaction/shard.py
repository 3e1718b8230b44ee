"""Pure: the transactions of one partition of `__transaction_state`: all decisions (KIP-98, KIP-360, KIP-890).

- Requests change nothing: they return a record, the answer for when it is committed, and what follows. Only `replay`
  changes state. A decision is final; until its markers are written the id gets CONCURRENT_TRANSACTIONS.
- Nothing is granted from memory alone: what was decided or added before is written again before it is confirmed again,
  so that a coordinator that was deposed without knowing confirms nothing.
- Unlike in Kafka a producer that names an old epoch (KIP-360) is fenced even while a transaction is open: an instance
  that was fenced long ago could abort its successor's transaction. Producer ids and time come from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from broker.config.broker import BrokerConfig
from broker.coordinator.result import (
    CoordinatorResult,
    Instant,
    LogLine,
    ProducerIdAndEpoch,
    Ticket,
)
from broker.coordinator.transaction.transaction_metadata import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    NO_TIMESTAMP,
    TRANSACTION_VERSION_0,
    TRANSACTION_VERSION_2,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    WriteMarkers,
    decode_record,
    encode_record,
    is_epoch_exhausted,
)
from kafka_ds.protocol.errors import ErrorCode, KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.records.batch import BatchHeader, read_records


class NeedsProducerId(Exception):
    """The event needs a new producer id: call again with one."""


# A request: a method of the shard, called with the time.
WriteOperation = Callable[["TransactionCoordinatorShard", int], CoordinatorResult]


class TransactionCoordinatorShard:
    """The transactions of one partition's transactional ids."""

    def __init__(self, settings: BrokerConfig) -> None:
        self._settings = settings
        self._transactions: dict[str, TransactionMetadata] = {}
        self._ongoing: set[str] = set()
        # The rest of the last check for timeouts, and when the next one is due.
        self._round: Iterator[CoordinatorResult] = iter(())
        self._is_round_open = False
        self._abort_due_ms = self._expire_due_ms = 0

    # -- the log ------------------------------------------------------------------------------------

    def replay_batch(self, data: bytes | bytearray, position: int, header: BatchHeader) -> int:
        """Replay a batch of the log; returns the number of records. Raises CorruptRecord or MalformedFrame."""
        records = [] if header.is_control else read_records(data, position, header)
        for record in records:
            known = decode_record(record.key or b"", record.value)
            if known is not None:
                self.replay(*known)
        return len(records)

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        """Key and value of a record."""
        return encode_record(*record)

    # -- state --------------------------------------------------------------------------------------

    def replay(
        self,
        transactional_id: str,
        transaction: TransactionMetadata | None,
        *,
        record_offset: int = -1,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """A record is in the log; without a transaction it is a tombstone."""
        self._ongoing.discard(transactional_id)
        if transaction is None:
            self._transactions.pop(transactional_id, None)
            return
        self._transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing.add(transactional_id)

    def loaded(self, now: Instant) -> CoordinatorResult:
        """The whole log has been replayed: transactions that were decided but not completed go on."""
        self._expect_time_outs(now)
        self._expect_expiry(now)
        return CoordinatorResult(
            effects=tuple(
                WriteMarkers(transaction=transaction)
                for transaction in self._transactions.values()
                if transaction.state.is_decided
            )
        )

    def handle(self, event: WriteOperation, ticket: Ticket, now: Instant) -> CoordinatorResult:
        """Decide the outcome of a request; raises KafkaError, or NeedsProducerId."""
        return event(self, now.now_ms)

    def written(
        self, result: CoordinatorResult, code: ErrorCode | None, now: Instant
    ) -> CoordinatorResult | None:
        """A record could not be appended, if there is a code: what else is due waits for the next check."""
        if code is not None:
            self._round, self._is_round_open = iter(()), False
        return None

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """The state of a transactional id."""
        return self._transactions.get(transactional_id)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(tuple(self._transactions.values()))

    def __len__(self) -> int:
        return len(self._transactions)

    # -- InitProducerId -----------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        *,
        two_phase_commit: bool = False,
        keep_prepared: bool = False,
        now_ms: int,
        spare_producer_id: int | None = None,
    ) -> CoordinatorResult:
        """The next producer of this transactional id; raises KafkaError.

        `two_phase_commit`: its transactions have no timeout (KIP-939). `keep_prepared` is refused, as by Kafka 4.4.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        timeout_ms = self._granted_timeout_ms(timeout_ms, two_phase_commit, keep_prepared)
        known = self._transactions.get(transactional_id)
        if known is None:
            begun = TransactionMetadata(
                transactional_id=transactional_id,
                producer_id=_needed(spare_producer_id),
                producer_epoch=0,
                timeout_ms=timeout_ms,
                state=TransactionState.EMPTY,
                updated_ms=now_ms,
                last_producer_epoch=NO_EPOCH if expected is None else expected.producer_epoch,
            )
            return _stored(begun, _producer_of(begun))
        if expected is not None and not _is_same_producer(known, expected):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if known.state.is_decided:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is TransactionState.ONGOING:
            if expected is not None and expected != _producer_of(known):
                raise KafkaError(ErrorCode.PRODUCER_FENCED)
            # A producer that named its epoch names it again, and is recognised by it.
            last_epoch = NO_EPOCH if expected is None else expected.producer_epoch
            again = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            return self._fence(known, now_ms, again, last_epoch=last_epoch)
        begun = _next_producer(known, expected, spare_producer_id).transition_to(
            TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            updated_ms=now_ms,
            started_ms=NO_TIMESTAMP,
            partitions=frozenset(),
            client_transaction_version=TRANSACTION_VERSION_0,
        )
        return _stored(begun, _producer_of(begun))

    def _granted_timeout_ms(
        self, timeout_ms: int, two_phase_commit: bool, keep_prepared: bool
    ) -> int:
        if two_phase_commit and not self._settings.transaction_two_phase_commit_enable:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if keep_prepared:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if two_phase_commit:
            return NO_TIMEOUT_MS
        if not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return timeout_ms

    def _fence(
        self,
        known: TransactionMetadata,
        now_ms: int,
        response: KafkaError | None,
        *,
        last_epoch: int = NO_EPOCH,
        client_transaction_version: int = TRANSACTION_VERSION_0,
    ) -> CoordinatorResult:
        """Abort an open transaction under an epoch that its producer does not have.

        `client_transaction_version`: of the first protocol its producer is fenced; of the second it may abort, too.
        """
        assert known.producer_epoch < EPOCH_MAX, "a producer id is changed before its last epoch"
        fenced = known.transition_to(
            TransactionState.PREPARE_EPOCH_FENCE,
            producer_epoch=known.producer_epoch + 1,
            last_producer_epoch=last_epoch,
            client_transaction_version=client_transaction_version,
        )
        return _decided(fenced, committed=False, now_ms=now_ms, response=response)

    # -- what belongs to a transaction ----------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        now_ms: int,
        client_transaction_version: int,
    ) -> CoordinatorResult:
        """Add partitions to the transaction, which begins with the first; raises KafkaError."""
        known = self._speaking(transactional_id, producer)
        added = frozenset(partitions)
        if known.state is TransactionState.ONGOING:
            if added <= known.partitions:
                return _stored(known, None)
            started_ms = known.started_ms
        else:
            started_ms = now_ms
        ongoing = known.transition_to(
            TransactionState.ONGOING,
            partitions=known.partitions | added,
            started_ms=started_ms,
            updated_ms=now_ms,
            client_transaction_version=client_transaction_version,
        )
        return _stored(ongoing, None)

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> CoordinatorResult:
        """Refuse a write to a partition that does not belong to the producer's open transaction; raises KafkaError."""
        if partition not in self._speaking(transactional_id, producer).partitions:
            raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE)
        return CoordinatorResult(response=None)

    def _speaking(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        """The transaction of the requesting producer, if it may be changed; raises KafkaError."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        known = self._transactions.get(transactional_id)
        if known is None or known.producer_id != producer.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if known.producer_epoch != producer.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if known.state.is_decided:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return known

    # -- EndTxn -------------------------------------------------------------------------------------

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        client_transaction_version: int,
        now_ms: int,
        spare_producer_id: int | None = None,
    ) -> CoordinatorResult:
        """Decide the transaction, or repeat the earlier decision; raises KafkaError."""
        bumps_epoch = client_transaction_version >= TRANSACTION_VERSION_2
        known, is_repeat = self._ending(transactional_id, producer, bumps_epoch=bumps_epoch)
        if known.state is TransactionState.ONGOING:
            if is_repeat:
                raise KafkaError(ErrorCode.PRODUCER_FENCED)
        elif known.state.is_decided:
            # A repeat, or the end of the next transaction: the answer is known when this one is complete.
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif not (bumps_epoch and not is_repeat and not committed):
            # Only a client that bumps epochs may abort nothing: it cannot know whether its first write arrived.
            return _said_again(
                known, committed=committed, is_answerable=is_repeat or not bumps_epoch
            )
        if not bumps_epoch:
            return _decided(
                known,
                committed=committed,
                now_ms=now_ms,
                response=_producer_of(known),
                # Whatever its writes claimed: markers of the second protocol are late under an epoch that was not
                # raised.
                client_transaction_version=client_transaction_version,
            )
        return _decided_with_next_epoch(known, committed, now_ms, spare_producer_id)

    def _ending(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, bumps_epoch: bool
    ) -> tuple[TransactionMetadata, bool]:
        """The transaction of the producer that ends it, and whether it was ended already with an answer that got
        lost.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        known = self._transactions.get(transactional_id)
        if known is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if bumps_epoch and _has_been_bumped(known, producer):
            return known, True
        if known.producer_id != producer.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if known.producer_epoch != producer.producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        return known, False

    def markers_written(self, decided: TransactionMetadata, now_ms: int) -> CoordinatorResult:
        """Each partition of a decided transaction has its marker: it is complete."""
        known = self._transactions.get(decided.transactional_id)
        if known != decided:
            return CoordinatorResult()
        complete = (
            TransactionState.COMPLETE_COMMIT if known.is_commit else TransactionState.COMPLETE_ABORT
        )
        done = known.transition_to(complete, partitions=frozenset(), updated_ms=now_ms)
        if known.next_producer_id != NO_PRODUCER_ID:
            done = done.changed_producer(known.next_producer_id, 0)
        return _stored(done, None)

    # -- time ---------------------------------------------------------------------------------------

    def next_due_ms(self) -> int:
        """When, by the monotonic clock, `tick` has something to do."""
        return 0 if self._is_round_open else min(self._abort_due_ms, self._expire_due_ms)

    def tick(self, now: Instant) -> CoordinatorResult | None:
        """The next transaction that has timed out, or transactional id that has expired; None if there is none.

        They are looked for at intervals, as in Kafka: a transaction stays open slightly longer than its timeout.
        """
        if not self._is_round_open:
            looks = []
            if now.monotonic_ms >= self._abort_due_ms:
                looks.append(self.timed_out(now.now_ms))
                self._expect_time_outs(now)
            if now.monotonic_ms >= self._expire_due_ms:
                looks.append(self.expired(now.now_ms))
                self._expect_expiry(now)
            self._round = chain.from_iterable(looks)
        result = next(self._round, None)
        self._is_round_open = result is not None
        return result

    def _expect_time_outs(self, now: Instant) -> None:
        interval_ms = self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._abort_due_ms = now.monotonic_ms + interval_ms

    def _expect_expiry(self, now: Instant) -> None:
        interval_ms = self._settings.transaction_remove_expired_transaction_cleanup_interval_ms
        self._expire_due_ms = now.monotonic_ms + interval_ms

    def timed_out(self, now_ms: int) -> Iterator[CoordinatorResult]:
        """Abort transactions that have exceeded their timeout."""
        for transactional_id in sorted(self._ongoing):
            known = self._transactions.get(transactional_id)
            if known is None or known.state is not TransactionState.ONGOING:
                continue  # Others may change while this goes on.
            if known.timeout_ms != NO_TIMEOUT_MS and known.started_ms + known.timeout_ms < now_ms:
                # The producer was not replaced: it may continue under the raised epoch (KIP-588, KIP-890), which it
                # learns if it asks for it by its own, or aborts. The last epoch of all is only for fencing.
                is_last = known.is_epoch_exhausted
                fenced = self._fence(
                    known,
                    now_ms,
                    None,
                    last_epoch=known.producer_epoch,
                    client_transaction_version=TRANSACTION_VERSION_0
                    if is_last
                    else TRANSACTION_VERSION_2,
                )
                line = f"Transaction {transactional_id} has timed out: aborting it"
                said = LogLine(line, {"transactional_id": transactional_id})
                yield fenced._replace(lines=(said,))

    def expired(self, now_ms: int) -> Iterator[CoordinatorResult]:
        """Remove transactional ids that were not used for long; others may change while this goes on."""
        for known in self:
            if self._transactions.get(known.transactional_id) is not known:
                continue
            age_ms = now_ms - known.updated_ms
            if known.state.may_expire and age_ms >= self._settings.transactional_id_expiration_ms:
                dead = known.transition_to(TransactionState.DEAD)
                yield CoordinatorResult(records=(TransactionRecord(dead.transactional_id, None),))


def _needed(spare_producer_id: int | None) -> int:
    if spare_producer_id is None:
        raise NeedsProducerId
    return spare_producer_id


def _producer_of(transaction: TransactionMetadata) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)


def _stored(transaction: TransactionMetadata, response: object) -> CoordinatorResult:
    return CoordinatorResult(
        records=(TransactionRecord(transaction.transactional_id, transaction),), response=response
    )


def _is_same_producer(known: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer is this one, or what it was before its id was changed (KIP-360)."""
    if expected.producer_id == known.producer_id:
        return True
    return expected.producer_id == known.previous_producer_id and is_epoch_exhausted(
        expected.producer_epoch
    )


def _next_producer(
    known: TransactionMetadata, expected: ProducerIdAndEpoch | None, spare_producer_id: int | None
) -> TransactionMetadata:
    """The producer with its next epoch, or with a new id where there is none; raises KafkaError."""
    epoch = None if expected is None else expected.producer_epoch
    # The last epoch of all is only for fencing, also where the producer itself asked for that (and now asks again).
    is_fenced = known.producer_epoch == EPOCH_MAX and epoch == known.last_producer_epoch
    if known.is_epoch_exhausted and (epoch in (None, known.producer_epoch) or is_fenced):
        last = NO_EPOCH if epoch is None else epoch
        return known.changed_producer(_needed(spare_producer_id), 0, last_epoch=last)
    if epoch is None or epoch == known.producer_epoch:
        last = NO_EPOCH if epoch is None else epoch
        return known.changed_epoch(known.producer_epoch + 1, last_epoch=last)
    if epoch == known.last_producer_epoch:
        return known  # The answer to the first try was lost; this one is the same.
    raise KafkaError(ErrorCode.PRODUCER_FENCED)


def _has_been_bumped(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether the producer's transaction was ended already, by a request whose answer it did not get (KIP-890)."""
    if known.client_transaction_version < TRANSACTION_VERSION_2:
        return False
    if producer.producer_id == known.producer_id:
        return producer.producer_epoch + 1 == known.producer_epoch
    return (
        producer.producer_id == known.previous_producer_id
        and is_epoch_exhausted(producer.producer_epoch)
        and known.producer_epoch == 0
    )


def _said_again(
    known: TransactionMetadata, *, committed: bool, is_answerable: bool
) -> CoordinatorResult:
    if known.state is TransactionState.EMPTY or not is_answerable or known.is_commit != committed:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    return _stored(known, _producer_of(known))


def _decided(
    known: TransactionMetadata, *, committed: bool, now_ms: int, response: object, **changes: int
) -> CoordinatorResult:
    state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    started_ms = known.started_ms if known.partitions else now_ms
    decided = known.transition_to(state, updated_ms=now_ms, started_ms=started_ms, **changes)
    return CoordinatorResult(
        records=(TransactionRecord(decided.transactional_id, decided),),
        response=response,
        effects=(WriteMarkers(transaction=decided),),
    )


def _decided_with_next_epoch(
    known: TransactionMetadata, committed: bool, now_ms: int, spare_producer_id: int | None
) -> CoordinatorResult:
    """Decide, and raise the epoch in the same record: later requests of the old one are fenced (KIP-890)."""
    epoch = known.producer_epoch + 1
    following = ProducerIdAndEpoch(known.producer_id, epoch)
    next_producer_id = NO_PRODUCER_ID
    if known.is_epoch_exhausted:
        next_producer_id = _needed(spare_producer_id)
        following = ProducerIdAndEpoch(next_producer_id, 0)
    return _decided(
        known,
        committed=committed,
        now_ms=now_ms,
        response=following,
        producer_epoch=epoch,
        last_producer_epoch=known.producer_epoch,
        next_producer_id=next_producer_id,
        client_transaction_version=TRANSACTION_VERSION_2,
    )
