"""Levels of the broker's loggers by DescribeConfigs and IncrementalAlterConfigs (KIP-412)."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_ds.process import log_lines
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka_ds.protocol.messages.configs import DescribeConfigsResource
from tests.in_process import InProcess, in_process
from tests.loops import in_loop
from tests.unit.handlers.config_requests import (
    APPEND,
    DELETE,
    SET,
    TOPIC,
    Change,
    change,
    resource,
)

LOGGER = 8
NAME = "broker.server.dispatch"


@pytest.fixture(autouse=True)
def levels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only the root has a level, whatever other tests in this process have set; given back as they were."""
    monkeypatch.setenv(log_lines.LEVELS_VARIABLE, "{}")
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, (*root.manager.loggerDict, NAME))]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.NOTSET)
    root.setLevel(logging.INFO)
    yield
    for logger, level in before:
        logger.setLevel(level)


async def told(broker: InProcess, name: str = "1") -> dict[str, str]:
    wanted = DescribeConfigsResource(
        resource_type=LOGGER, resource_name=name, configuration_keys=None
    )
    (answer,) = (await broker.ask(DescribeConfigsRequest(resources=[wanted]), 4)).results
    assert {each.config_source for each in answer.configs} <= {6}
    assert not any(each.read_only or each.is_sensitive for each in answer.configs)
    return {each.name: each.value for each in answer.configs} or {"": answer.error_message}


@in_loop
async def test_a_level_is_set_and_inherited_and_given_back(
    memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_process(memory_path) as broker:
        found = await told(broker)
        assert found["root"] == found[NAME] == "INFO"
        assert all(each == "root" or each.startswith(("broker", "kafka_ds")) for each in found)
        # Packages are listed, too: kafka-configs changes nothing else.
        assert found["broker.server"] == "INFO"
        assert (await change(broker, LOGGER, "1", ("broker.server", SET, "DEBUG"))).error_code == 0
        assert (await told(broker))[NAME] == "DEBUG"
        assert "DescribeConfigs 4 from" in caplog.text
        await change(broker, LOGGER, "1", (NAME, SET, "WARN"), ("broker.server", DELETE, None))
        found = await told(broker)
        assert (found["broker.server"], found[NAME]) == ("INFO", "WARN")
        # Processes that the broker starts from now on take it over.
        assert json.loads(os.environ[log_lines.LEVELS_VARIABLE]) == {NAME: "WARN"}
        await change(broker, LOGGER, "1", ("root", SET, "ERROR"), (NAME, DELETE, None))
        assert set((await told(broker)).values()) == {"ERROR"}


@pytest.mark.parametrize(
    ("name", "changes", "code", "says"),
    [
        ("2", [], ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 2"),
        ("1", [("root", DELETE, None)], ErrorCode.INVALID_REQUEST, "root logger is not allowed"),
        ("1", [(NAME, APPEND, "INFO")], ErrorCode.INVALID_REQUEST, "APPEND operation"),
        ("1", [(NAME, 9, "INFO")], ErrorCode.INVALID_REQUEST, "9"),
        ("1", [("no.such", SET, "INFO")], ErrorCode.INVALID_CONFIG, "no.such does not exist"),
        ("1", [(NAME, SET, "LOUD")], ErrorCode.INVALID_CONFIG, "not a supported log level"),
        (
            "1",
            [(NAME, SET, None)],
            ErrorCode.INVALID_REQUEST,
            f"Null value not supported for : {NAME}",
        ),
        ("1", [("asyncio", SET, "DEBUG")], ErrorCode.INVALID_CONFIG, "asyncio does not exist"),
        (
            "1",
            [(NAME, SET, "WARN"), (NAME, DELETE, None)],
            ErrorCode.INVALID_REQUEST,
            f"duplicate config keys: {NAME}",
        ),
    ],
)
@in_loop
async def test_what_is_refused_changes_no_level(
    memory_path: Path, name: str, changes: list[Change], code: ErrorCode, says: str
) -> None:
    async with in_process(memory_path) as broker:
        before = await told(broker)
        answer = await change(broker, LOGGER, name, ("broker", SET, "DEBUG"), *changes)
        assert (answer.error_code, says in answer.error_message) == (code, True)
        assert await told(broker) == before


@in_loop
async def test_one_request_for_loggers_and_topics(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await broker.create("t")
        both = [
            resource(LOGGER, "1", (NAME, SET, "ERROR")),
            resource(TOPIC, "t", ("segment.ms", SET, "12345")),
        ]
        request = IncrementalAlterConfigsRequest(resources=both, validate_only=True)
        answers = (await broker.ask(request, 1)).responses
        assert [(each.resource_type, each.error_code) for each in answers] == [
            (LOGGER, 0),
            (TOPIC, 0),
        ]
        assert (await told(broker))[NAME] == "INFO"
        request = IncrementalAlterConfigsRequest(resources=both, validate_only=False)
        await broker.ask(request, 1)
        assert (await told(broker))[NAME] == "ERROR"
        assert broker.node.metadata.topics["t"].configs == {"segment.ms": "12345"}
        twice = IncrementalAlterConfigsRequest(resources=[both[0]] * 2, validate_only=False)
        (answer,) = (await broker.ask(twice, 1)).responses
        assert (answer.error_code, answer.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "1 is named twice",
        )
        assert (await told(broker, ""))[""] == "Broker id must not be empty"


@pytest.mark.parametrize("name", list(log_lines.LEVELS))
def test_each_level_has_kafkas_name(name: str) -> None:
    log_lines.set_level("root", name)
    assert log_lines.levels()["root"] == name
