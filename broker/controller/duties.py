"""Shell: the active controller's periodic work: ending sessions, electing preferred leaders, deleting expired tokens.

- Only the active controller decides; all other brokers wait to become it.
- The controller's own broker gets its heartbeat here: no other broker could report that it is gone.
- A controller that did not run for a while has missed all heartbeats, which says nothing about the brokers: all
  sessions start again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kafka_ds.process.amounts import counted
from kafka_ds.protocol.errors import KafkaError

if TYPE_CHECKING:
    from broker.controller.metadata_driver import MetadataDriver
    from kafka_ds.process.seams import Clock

_LOGGER = logging.getLogger(__name__)

STEP_SECONDS_MAX = 0.5
IDLE_SECONDS = 1.0


class Duties:
    """The timers of the controller."""

    def __init__(
        self,
        driver: MetadataDriver,
        clock: Clock,
        *,
        session_timeout_ms: int,
        balance_interval_ms: int | None,
        token_check_interval_ms: int,
    ) -> None:
        """`balance_interval_ms`: None where auto.leader.rebalance.enable is false."""
        self._driver = driver
        self._clock = clock
        self._pause_ms = int(STEP_SECONDS_MAX * 1_000) + session_timeout_ms // 2
        self._balance_interval_ms = balance_interval_ms
        self._token_check_interval_ms = token_check_interval_ms

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        driver, clock = self._driver, self._clock
        while True:
            while not driver.is_active:
                await driver.wait_for_change(IDLE_SECONDS)
            awake_ms = clock.monotonic_ms()
            balance_due_ms = awake_ms + (self._balance_interval_ms or 0)
            tokens_due_ms = awake_ms + self._token_check_interval_ms
            while driver.is_active:
                now_ms = clock.monotonic_ms()
                if now_ms - awake_ms > self._pause_ms:
                    _LOGGER.warning(
                        "the controller did not run for %d ms: restarting all broker sessions",
                        now_ms - awake_ms,
                    )
                    driver.controller.begin_sessions(now_ms)
                awake_ms = now_ms
                is_done = await self._expire(now_ms)
                if self._balance_interval_ms is not None and now_ms >= balance_due_ms:
                    balance_due_ms = now_ms + self._balance_interval_ms
                    await self._balance()
                if now_ms >= tokens_due_ms:
                    tokens_due_ms = now_ms + self._token_check_interval_ms
                    await self._delete_expired_tokens()
                awake_ms = max(awake_ms, clock.monotonic_ms())
                # A failed write is tried again, but not as fast as it can fail.
                await asyncio.sleep(self._step_seconds() if is_done else STEP_SECONDS_MAX)

    def _step_seconds(self) -> float:
        deadline_ms = self._driver.controller.next_deadline_ms()
        if deadline_ms is None:
            return STEP_SECONDS_MAX
        left = (deadline_ms - self._clock.monotonic_ms()) / 1_000
        return min(max(left, 0.005), STEP_SECONDS_MAX)

    async def _expire(self, now_ms: int) -> bool:
        try:
            await self._driver.decide(lambda c: c.expire_sessions(now_ms), at_once=True)
        except KafkaError as error:
            _LOGGER.warning("Unable to expire the sessions of brokers: %s", _reason(error))
            return False
        return True

    async def _balance(self) -> None:
        try:
            moved = await self._driver.decide(lambda c: c.balance_leaders())
        except KafkaError as error:
            _LOGGER.warning("Unable to elect preferred leaders: %s", _reason(error))
            return
        if moved:
            _LOGGER.info(
                "moved the leaders of %s back to the preferred replicas",
                counted(moved, "partition"),
            )

    async def _delete_expired_tokens(self) -> None:
        now_ms = self._clock.now_ms()
        try:
            expired = await self._driver.decide(lambda c: c.delete_expired_tokens(now_ms))
        except KafkaError as error:
            _LOGGER.warning("Unable to delete expired delegation tokens: %s", _reason(error))
            return
        for token in expired:
            _LOGGER.info(
                "Delegation token expired for token: %s for owner: %s", token.token_id, token.owner
            )


def _reason(error: KafkaError) -> str:
    return error.message or error.code.name
