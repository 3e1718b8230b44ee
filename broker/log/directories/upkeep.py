"""Shell: the periodic work of a broker's logs: roll, flush, unlink, retain, forget producers.

A broker has thousands of logs, and nearly all of them have nothing to do for hours. Each is asked once when it will
have something to do (`_next_ms`), and not again before then unless it has changed: another end, other segments or
settings. Each run of retention asks all logs again. A clock that is set back delays nothing, as in Kafka. A log that
fails is logged and does not stop the others; it is asked again the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.log.segment.segment import Segment
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.protocol.topic_partition import TopicPartition

_LOGGER = logging.getLogger(__name__)


class Interval:
    """Something periodic, with its interval in milliseconds."""

    def __init__(self, every_ms: int, now_ms: int) -> None:
        self._every_ms = every_ms
        self._last_ms = now_ms

    def is_over(self, now_ms: int) -> bool:
        """Whether it is to be done now; a clock that was set back is a reason, too."""
        if 0 <= now_ms - self._last_ms < self._every_ms:
            return False
        self._last_ms = now_ms
        return True


class _IdleUntil(NamedTuple):
    """While a log is in this state it has nothing to do until that time."""

    key: TopicPartition
    log: Log
    end_offset: int
    segments: tuple[Segment, ...]
    config: LogConfig
    until_ms: int


class LogUpkeep:
    """The periodic work of all logs of one broker."""

    def __init__(self) -> None:
        self._quiet: dict[TopicPartition, _IdleUntil] = {}
        # Logs that may have something to do.
        self._asked: dict[TopicPartition, Log] = {}
        self._ran_ms: int | None = None

    def add(self, key: TopicPartition, log: Log) -> None:
        """Use this log for the partition from now on."""
        self._quiet.pop(key, None)
        self._asked[key] = log

    def forget(self, key: TopicPartition) -> None:
        """Forget the partition's log, so that nothing keeps its memory."""
        self._quiet.pop(key, None)
        self._asked.pop(key, None)

    def run(
        self,
        logs: Mapping[TopicPartition, Log],
        now_ms: int,
        rolled: list[Log],
        *,
        retain: bool,
        expiration_ms: int | None,
    ) -> None:
        """Do what is due for these logs; `retain`: also local retention.

        With `expiration_ms`, producer.id.expiration.ms, silent producers are forgotten, too. Those logs that have
        rolled a segment are added to `rolled`, whatever fails after it.
        """
        back_ms = 0 if self._ran_ms is None else self._ran_ms - now_ms
        self._ran_ms = now_ms
        if back_ms > 0:
            self._quiet.clear()
            self._asked = dict(logs)
            for log in logs.values():
                log.set_back(back_ms)
        if retain or expiration_ms is not None:
            self._quiet.clear()
            self._asked = dict(logs)
        else:
            # By position: thousands of these a second.
            for key, log, end_offset, segments, config, until_ms in self._quiet.values():
                if (
                    log.log_end_offset != end_offset
                    or log.segments.all is not segments
                    or log.config is not config
                    or now_ms >= until_ms
                ):
                    self._asked[key] = log
        asked, self._asked = self._asked, {}
        for key, log in asked.items():
            self._quiet.pop(key, None)
            if logs.get(key) is log:
                active = log.active
                self._look_after(key, log, now_ms, retain=retain)
                if log.active is not active:
                    rolled.append(log)
                if expiration_ms is not None:
                    log.producers.expire(now_ms, expiration_ms)

    def _look_after(self, key: TopicPartition, log: Log, now_ms: int, *, retain: bool) -> None:
        """Do what is due in one log, and remember until when nothing will be, unless it changes."""
        until_ms = now_ms
        try:
            log.maybe_roll(now_ms)
            log.tick(now_ms)
            if retain:
                log.delete_local_segments(now_ms)
            until_ms = _next_ms(log)
        except (OSError, KafkaError) as error:
            _LOGGER.error(
                "Error while rolling, flushing or deleting log segments for %s: %s", log.name, error
            )
            if isinstance(error, OSError):
                log.failed_to_read(error)
        except Exception:  # Whatever the error: the others have to be looked at.
            _LOGGER.exception("Unexpected error in the upkeep of log %s", log.name)
        if now_ms < until_ms:
            state = log.log_end_offset, log.segments.all, log.config
            self._quiet[key] = _IdleUntil(key, log, *state, until_ms)
        else:
            self._asked[key] = log


def _next_ms(log: Log) -> int:
    """When an unchanged log has something to do: perhaps a little too early, never too late."""
    due_ms = log.segments.trash.due_ms
    if log.unflushed_count and log.storage_error is None:
        due_ms = min(due_ms, log.durability.last_sync_ms + log.config.flush_ms)
    active = log.active
    if active.size_bytes:
        due_ms = min(due_ms, active.created_ms + active.roll_after_ms(log.config, log.name))
    return due_ms
