"""Whether brokers could work with settings: those that do not say so keep nobody waiting, and close nobody's door."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from broker.config.broker import BrokerConfig
from broker.config.dynamic import DynamicBrokerConfig
from broker.handlers.configs import settings_validation
from broker.handlers.configs.settings_validation import validate_on_brokers
from broker.kafka_broker import KafkaBroker
from broker.transport.peer import PeerUnreachable
from kafka_ds.protocol.messages import ValidateSettingsResponse
from tests.fakes.cluster import image_of, registration_of
from tests.fakes.kafka_broker import broker_of
from tests.fakes.network import Respondent
from tests.loops import in_loop, until


def answer(_: object, broker_id: int) -> Any:
    """The other brokers have each their own way to answer."""
    match broker_id:
        case 2:
            return ValidateSettingsResponse(error_code=40, error_message="not with its disk")
        case 3:
            return asyncio.get_running_loop().create_future()
        case 4:
            return PeerUnreachable("broker 4 is away")
    return ValidateSettingsResponse()


def asker() -> KafkaBroker:
    brokers = [registration_of(number, fenced=number == 6) for number in range(2, 7)]
    return broker_of(
        dynamic_config=DynamicBrokerConfig(replace(BrokerConfig(), node_id=1)),
        metadata=image_of(*brokers),
        member=Respondent(answer),
    )


@in_loop
async def test_who_does_not_answer_does_not_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_validation, "VALIDATION_MS_MAX", 20)
    found = await validate_on_brokers(asker(), {"": {}}, [""])
    assert found == {"2": "not with its disk", "5": None}


@in_loop
async def test_who_asks_can_be_cancelled() -> None:
    node = asker()
    asking = asyncio.get_running_loop().create_task(validate_on_brokers(node, {"": {}}, [""]))
    await until(lambda: cast(Any, node.member).asked)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
