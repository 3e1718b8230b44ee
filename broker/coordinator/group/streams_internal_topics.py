"""Shell: the internal topics of streams groups, created when a heartbeat finds them missing (KIP-1071).

Members are not kept waiting: their next heartbeats see the topics, or are told why there are none. What failed is not
tried again before its error is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from broker.controller.topics import NewTopic, TopicResult
from broker.membership.requests import ControllerRequests
from kafka_ds.process.seams import Clock
from kafka_ds.protocol.errors import ErrorCode, KafkaError

_LOGGER = logging.getLogger(__name__)

# Of so many topics errors are remembered; one more forgets those that are due first.
ERRORS_MAX = 1_000


class StreamsInternalTopics:
    """What is being created, and what could not be."""

    def __init__(self, controller: ControllerRequests, clock: Clock) -> None:
        self._controller = controller
        self._clock = clock
        self._creating: set[str] = set()
        # Name -> until when it is remembered, and the error.
        self._errors: dict[str, tuple[int, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Create nothing more."""
        for task in tuple(self._tasks):
            task.cancel()

    def errors(self, names: Iterable[str]) -> dict[str, str]:
        """Why some of these topics could not be created."""
        now_ms = self._clock.monotonic_ms()
        self._errors = {n: each for n, each in self._errors.items() if each[0] > now_ms}
        return {name: self._errors[name][1] for name in names if name in self._errors}

    def create(self, topics: Sequence[NewTopic], *, remember_ms: int) -> None:
        """Begin to create those that are not being created; an error is remembered for so long."""
        failed = self.errors(topic.name for topic in topics)
        wanted = [t for t in topics if t.name not in self._creating and t.name not in failed]
        if wanted:
            self._creating.update(topic.name for topic in wanted)
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._create(wanted, remember_ms), name="streams topics")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _create(self, topics: Sequence[NewTopic], remember_ms: int) -> None:
        try:
            results = await self._controller.create_topics(topics)
        except KafkaError as error:
            results = [
                TopicResult(name=topic.name, error=error.code, message=error.message)
                for topic in topics
            ]
        finally:
            self._creating.difference_update(topic.name for topic in topics)
        until_ms = self._clock.monotonic_ms() + remember_ms
        for result in results:
            if result.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                continue
            reason = result.message or result.error.name
            _LOGGER.warning("Failed to create internal topic %s: %s", result.name, reason)
            if len(self._errors) >= ERRORS_MAX:
                del self._errors[min(self._errors, key=lambda name: self._errors[name][0])]
            self._errors[result.name or ""] = (until_ms, reason)
