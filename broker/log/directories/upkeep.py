"""Shell: what the logs of a broker have to do by time: roll, flush, unlink, retain, forget producers.

Rules of this file:
- A broker has thousands of logs, of which nearly all have nothing to do for hours. Each is asked once when that will
  be (`_next_ms`), and not again before then, unless it has changed: another end, other segments or other settings.
  That is seen by looking, so that nothing that changes a log has to think of it.
- With each run of retention all are asked anew.
- One log that fails is logged and does not keep the others from their upkeep; it is asked again the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker.log.config import LogConfig
from broker.log.log import Log
from broker.log.rolling import roll_after_ms
from broker.log.segment.segment import Segment
from kafka_ds.wire.errors import KafkaError

Key = tuple[str, int]

_LOGGER = logging.getLogger(__name__)


class _Quiet(NamedTuple):
    """As long as a log is this, it has nothing to do until then."""

    key: Key
    log: Log
    end_offset: int
    segments: tuple[Segment, ...]
    config: LogConfig
    until_ms: int


class Upkeep:
    """Of all logs of one broker."""

    def __init__(self, failed: Callable[[Log, OSError], None]) -> None:
        """`failed` is told of each error of a disk."""
        self._failed = failed
        self._quiet: dict[Key, _Quiet] = {}
        # Those of which it is not known that they have nothing to do.
        self._asked: dict[Key, Log] = {}

    def add(self, key: Key, log: Log) -> None:
        """This is the partition's log from now on."""
        self._quiet.pop(key, None)
        self._asked[key] = log

    def forget(self, key: Key) -> None:
        """This partition has no log here any more: nothing is to hold what it had in memory."""
        self._quiet.pop(key, None)
        self._asked.pop(key, None)

    def run(self, logs: Mapping[Key, Log], now_ms: int, *, retain: bool, expire: bool) -> None:
        """Do what is due for these; `retain`: local retention as well, `expire`: forget silent producers."""
        if retain or expire:
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
                self._look(key, log, now_ms, retain=retain)
                if expire:
                    log.producers.expire(now_ms, log.config.producer_id_expiration_ms)

    def _look(self, key: Key, log: Log, now_ms: int, *, retain: bool) -> None:
        until_ms = now_ms
        try:
            log.maybe_roll(now_ms)
            log.tick(now_ms)
            if retain and not log.compaction.is_running:
                log.delete_local_segments(now_ms)
            until_ms = _next_ms(log)
        except (OSError, KafkaError) as error:
            _LOGGER.error("%s: %s", log.name, error)
            if isinstance(error, OSError):
                self._failed(log, error)
        if now_ms < until_ms:
            state = log.log_end_offset, log.segments.all, log.config
            self._quiet[key] = _Quiet(key, log, *state, until_ms)
        else:
            self._asked[key] = log


def _next_ms(log: Log) -> int:
    """When a log has something to do if nothing happens to it: a little too early, perhaps, and never too late."""
    due_ms = log.segments.trash.due_ms
    if log.unflushed_count and log.storage_error is None:
        due_ms = min(due_ms, log.durability.last_sync_ms + log.config.flush_ms)
    active = log.active
    if active.size_bytes:
        due_ms = min(due_ms, active.created_ms + roll_after_ms(active, log.config, log.name))
    return due_ms
