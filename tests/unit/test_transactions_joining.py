"""Writes that wait for a coordinator's answer: each hears of it, whatever becomes of the others."""

from __future__ import annotations

import asyncio

import pytest

from broker.transactions.joining import Asking
from kafka_ds.wire.errors import ErrorCode, KafkaError
from tests.loops import in_loop


@in_loop
async def test_a_mistake_with_one_write_does_not_keep_the_others_waiting() -> None:
    asking = Asking()

    def mistaken() -> None:
        raise AssertionError("ours")

    first = asyncio.ensure_future(asking.before(mistaken))
    second = asyncio.ensure_future(asking.before(lambda: "written"))
    await asyncio.sleep(0)
    asking.answered(None)
    with pytest.raises(KafkaError) as refused:
        await first
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert await second == "written"
