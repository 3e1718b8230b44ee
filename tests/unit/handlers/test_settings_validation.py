"""Whether brokers could work with settings: those that do not say so keep nobody waiting, and close nobody's door."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.handlers.configs import settings_validation
from broker.handlers.configs.settings_validation import validate_on_brokers
from broker.kafka_broker import KafkaBroker
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.messages import ValidateSettingsResponse
from tests.loops import in_loop


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


class Peers:
    """The other brokers, each with its own way to answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def send(
        self, broker_id: int, request: Any, *, timeout_ms: int
    ) -> ValidateSettingsResponse:
        self.asked.set()
        match broker_id:
            case 2:
                return ValidateSettingsResponse(error_code=40, error_message="not with its disk")
            case 3:
                await _for_ever()
            case 4:
                raise PeerUnreachable("broker 4 is away")
        return ValidateSettingsResponse()


def asker() -> KafkaBroker:
    brokers = {number: SimpleNamespace(fenced=number == 6) for number in range(2, 7)}
    parts = SimpleNamespace(
        config=SimpleNamespace(node_id=1),
        metadata=SimpleNamespace(brokers=brokers),
        member=Peers(),
    )
    return cast(KafkaBroker, parts)


@in_loop
async def test_who_does_not_answer_does_not_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_validation, "VALIDATION_MS_MAX", 20)
    found = await validate_on_brokers(asker(), {"": {}}, [""])
    assert found == {"2": "not with its disk", "5": None}


@in_loop
async def test_who_asks_can_be_cancelled() -> None:
    node = asker()
    asking = asyncio.get_running_loop().create_task(validate_on_brokers(node, {"": {}}, [""]))
    await cast(Any, node.member).asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
