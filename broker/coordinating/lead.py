"""Shell: one partition of a coordinator's topic while this broker leads it: its log is read, then appended to.

Rules of this file:
- While the log is being read, requests get COORDINATOR_LOAD_IN_PROGRESS. If it cannot be read or understood they get
  COORDINATOR_NOT_AVAILABLE, since the state may be old. Once this broker no longer leads the partition they get
  NOT_COORDINATOR.
- The time of reading is logged and counted; a slow reading logs its progress from time to time.
- A failed append becomes one of Kafka's coordinator errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker.coordinating.loads import Loads, State
from broker.log.replay import LoadFailed, ReplayBatch, replay_log
from broker.log.values import AppendOrigin
from broker.replica.leader.hosted import HostedPartition
from broker.seams import Clock
from kafka_ds.wire.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

RECOVERY_POLL_SECONDS = 0.05
PROGRESS_EVERY_MS = 5_000

_TOLD = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class Lead:
    """A coordinator's partition."""

    def __init__(
        self, partition: HostedPartition, *, clock: Clock, loads: Loads, load_bytes: int
    ) -> None:
        """`load_bytes` are read at once; `loads` counts how long reading takes."""
        self.partition = partition
        self._clock = clock
        self._loads = loads
        self._load_bytes = load_bytes
        # Why no request is taken; None: they are.
        self.refusal: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # The offset of the last record that this coordinator knows.
        self.written = -1
        self._loading: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        """As Kafka's metrics call it."""
        match self.refusal:
            case None:
                return State.ACTIVE
            case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return State.LOADING
            case ErrorCode.COORDINATOR_NOT_AVAILABLE:
                return State.FAILED
            case _:
                return State.CLOSED

    def check(self) -> None:
        """Raises KafkaError while no request is taken."""
        if self.refusal is not None:
            raise KafkaError(self.refusal)

    # -- beginning and ending -----------------------------------------------------------------------

    def begin(self, replay: ReplayBatch, loaded: Callable[[], None]) -> None:
        """Read the log, then say so; one without records is read at once."""
        log = self.partition.log
        if log.log_end_offset == log.log_start_offset and not self.partition.leader.is_recovering:
            self._loaded(loaded)
            return
        loading = self._load(replay, loaded)
        self._loading = asyncio.get_running_loop().create_task(loading, name=f"load {log.name}")
        self._loading.add_done_callback(self._ended)

    async def _load(self, replay: ReplayBatch, loaded: Callable[[], None]) -> None:
        partition, log = self.partition, self.partition.log
        while partition.leader.is_recovering:
            await asyncio.sleep(RECOVERY_POLL_SECONDS)
        began_ms = said_ms = self._clock.monotonic_ms()

        def on_progress(offset: int) -> None:
            nonlocal said_ms
            now_ms = self._clock.monotonic_ms()
            if now_ms - said_ms >= PROGRESS_EVERY_MS:
                said_ms = now_ms
                how_far = f"offset {offset} of {log.log_end_offset}"
                _LOGGER.info("%s: loading, %s after %d ms", log.name, how_far, now_ms - began_ms)

        try:
            await replay_log(log, replay, load_bytes=self._load_bytes, on_progress=on_progress)
        except (LoadFailed, KafkaError, OSError) as error:
            _LOGGER.error("%s cannot be coordinated: %s", log.name, error)
            self.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if isinstance(error, OSError):
                log.failed_to_read(error)
            return
        took_ms = self._clock.monotonic_ms() - began_ms
        self._loads.loaded(took_ms, self._clock.monotonic_ms())
        _LOGGER.info("%s: loaded up to offset %d in %d ms", log.name, log.log_end_offset, took_ms)
        self._loaded(loaded)

    def _loaded(self, loaded: Callable[[], None]) -> None:
        self.written = self.partition.log.log_end_offset - 1
        self.refusal = None
        loaded()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._loading = None
        if not task.cancelled() and task.exception() is not None:
            self.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
            name = self.partition.log.name
            _LOGGER.error("%s: a mistake of ours", name, exc_info=task.exception())

    def end(self) -> None:
        """This broker no longer leads the partition, or is stopping."""
        self.refusal = ErrorCode.NOT_COORDINATOR
        if self._loading is not None:
            self._loading.cancel()

    # -- records ------------------------------------------------------------------------------------

    def append(self, batch: bytes | bytearray) -> int:
        """Append a batch; the offset of its first record. Raises KafkaError in a coordinator's words."""
        try:
            info = self.partition.append(
                memoryview(bytearray(batch)),
                acks=-1,
                now_ms=self._clock.now_ms(),
                origin=AppendOrigin.COORDINATOR,
            )
        except KafkaError as error:
            raise KafkaError(_TOLD.get(error.code, error.code), error.message) from error
        except OSError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(error)) from error
        self.written = info.last_offset
        return info.first_offset
