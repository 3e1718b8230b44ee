"""Hundreds of partitions that get other leaders in one commit: who waits for what."""

from __future__ import annotations

import asyncio

from broker.metadata.events import BrokerRegistrationChanged
from broker.replica.state_applier import CHANGES_AT_ONCE
from tests.loops import in_loop
from tests.unit.replica.replica_bench import ME, OTHER, THIRD, ReplicaBench, changed, registered


@in_loop
async def test_what_is_led_here_or_was_comes_first() -> None:
    """Producers wait for it, and not for who follows what."""
    bench = ReplicaBench()
    count = 3 * CHANGES_AT_ONCE
    await bench.create(*[registered(OTHER)] * count, registered(ME), registered(OTHER))
    leading = bench.led(count)
    moved = [changed(registered(THIRD, 1), index) for index in range(count + 1)]
    taking = asyncio.create_task(bench.commit(*moved, changed(registered(ME, 1), count + 1)))
    await asyncio.sleep(0)
    assert not taking.done()
    assert leading.is_lost
    assert bench.led(count + 1).leader.leader_epoch == 1
    await taking
    assert bench.followed(count - 1).follower.leader_epoch == 1


@in_loop
async def test_a_broker_in_controlled_shutdown_follows_nobody() -> None:
    """It is out of every ISR, and would only keep the new leaders busy."""
    bench = ReplicaBench()
    await bench.create(registered(OTHER))

    def stopping(broker_id: int) -> BrokerRegistrationChanged:
        return BrokerRegistrationChanged(
            broker_id=broker_id,
            broker_epoch=1,
            fenced=False,
            in_controlled_shutdown=True,
            log_dirs=(),
        )

    await bench.manager.apply([stopping(OTHER)])
    assert not bench.fetchers.is_stopped
    await bench.manager.apply([stopping(ME), changed(registered(THIRD, 1))])
    assert bench.fetchers.is_stopped
