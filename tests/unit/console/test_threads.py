"""One thread for one kind of work, whoever hangs up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from broker.console.threads import SingleThread
from tests.loops import in_loop, turns


@in_loop
async def test_who_hangs_up_makes_no_room_for_another() -> None:
    thread, may_end = SingleThread("test"), threading.Event()
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        assert may_end.wait(60)
        return number

    first, second, third = (asyncio.ensure_future(thread.run(work, number)) for number in (1, 2, 3))
    async with asyncio.timeout(60):
        while not begun:
            await asyncio.sleep(0.01)
    for each in (first, second):
        each.cancel()
    await turns()
    assert begun == [1], "the first one still has the thread"
    may_end.set()
    assert await third == 3
    assert begun == [1, 3], "the second one had not begun"
    thread.stop()
    with pytest.raises(RuntimeError):
        await thread.run(work, 4)
