"""Writes that wait for a coordinator's answer: each hears of it, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.transactions.joining import Asking, Joins, Support, Writer
from broker.transactions.values import ProducerIdAndEpoch, TransactionSettings
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


@in_loop
async def test_a_mistake_of_ours_is_in_the_log_and_the_client_asks_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nowhere: Any = SimpleNamespace()
    joins = Joins(nowhere, nowhere, 1, TransactionSettings())
    writer = Writer("x", ProducerIdAndEpoch(1, 0), Support.JOINS)
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    answer.set_exception(AssertionError("ours"))
    refused = joins._judge(nowhere, writer, Asking(), answer)
    assert refused is not None and refused.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [record.levelname for record in caplog.records] == ["ERROR"]
