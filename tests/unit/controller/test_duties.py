"""The controller's duties by the clock, over a folder."""

import asyncio
from pathlib import Path

from broker.controller.duties import Duties
from broker.membership.election import Claim
from tests.loops import in_loop
from tests.unit.controller.metadata_broker import Broker
from tests.unit.membership.standing import Standing


@in_loop
async def test_who_is_controller_again_does_not_go_by_the_sessions_of_before(
    memory_path: Path,
) -> None:
    again, other = Standing(memory_path, 1), Broker(memory_path, node_id=2)
    driver = again.broker.driver
    await again.begin()
    duties = Duties(
        driver,
        again.clock,
        session_timeout_ms=9_000,
        balance_interval_ms=None,
        token_check_interval_ms=3_600_000,
    )
    await other.driver.catch_up()
    assert await other.start()
    assert not await driver.confirm()
    working = asyncio.ensure_future(duties.run())
    again.clock.ms += 60_000
    await again.candidacy.claim(
        Claim(controller_id=2, controller_epoch=2, is_dead=False, reason="it is silent")
    )
    assert driver.is_active
    await again.broker.create("t")  # Behind all that was decided before.
    assert [each.broker_id for each in driver.image.brokers.values() if each.fenced] == []
    working.cancel()
    await other.driver.stop()
    await again.stop()
