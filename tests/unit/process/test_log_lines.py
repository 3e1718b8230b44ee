"""The broker's own log: both formats, fields, and the limit of equal lines."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker.metadata.event_lines import Logged, lines_of
from broker.metadata.events import (
    ConfigChanged,
    Event,
    FenceBroker,
    PartitionChanged,
    PartitionRegistration,
    TopicCreated,
    TopicDeleted,
    UnfenceBroker,
)
from kafka_ds.process import log_lines
from kafka_ds.protocol.messages.configs import BROKER_RESOURCE, TOPIC_RESOURCE


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, given back as it was."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture
def log() -> logging.Logger:
    return logging.getLogger("broker.somewhere")


def test_json_is_one_object_a_line(root: logging.Logger, log: logging.Logger) -> None:
    stream = io.StringIO()
    log_lines.set_up(log_lines.JSON, process="tier worker", stream=stream)
    log.info("copied %s\nand more", "t-0", extra={"topic": "t", "partition": 0, "level": "mine"})
    try:
        raise ValueError("no such offset")
    except ValueError:
        log.exception("lost", extra={"id": b"\x01"})
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["time"].endswith("Z")
    del first["time"]
    assert first == {
        "level": "INFO",
        "logger": "broker.somewhere",
        "process": "tier worker",
        "message": "copied t-0\nand more",
        "topic": "t",
        "partition": 0,
    }
    assert (second["level"], second["message"], second["id"]) == ("ERROR", "lost", "b'\\x01'")
    assert second["exception"].splitlines()[-1] == "ValueError: no such offset"


def test_text_is_for_people(root: logging.Logger, log: logging.Logger) -> None:
    stream = io.StringIO()
    log_lines.set_up(log_lines.TEXT, stream=stream)
    log.warning("copied %s", "t-0", extra={"topic": "t"})
    log.debug("not of interest")
    assert stream.getvalue().endswith(" WARNING copied t-0 (broker.somewhere)\n")
    assert stream.getvalue().count("\n") == 1


def test_each_line_names_the_node(root: logging.Logger, log: logging.Logger) -> None:
    texts = []
    for form in (log_lines.TEXT, log_lines.JSON):
        stream = io.StringIO()
        log_lines.set_up(form, process="tier worker", node="3", stream=stream)
        log.info("copied")
        texts.append(stream.getvalue())
    assert texts[0].endswith(" INFO [node 3] tier worker: copied (broker.somewhere)\n")
    assert json.loads(texts[1])["node"] == 3


def records(log: logging.Logger, at_s: float, count: int, line: int = 1) -> None:
    """`count` records of one statement at a time."""
    for number in range(count):
        record = log.makeRecord(log.name, logging.INFO, "f.py", line, "line %d", (number,), None)
        record.created = at_s
        log.handle(record)


def test_of_equal_lines_only_some_are_written(root: logging.Logger, log: logging.Logger) -> None:
    stream = io.StringIO()
    log_lines.set_up(log_lines.TEXT, stream=stream)
    limit = log_lines.LINES_MAX
    records(log, 100.0, limit + 7)
    assert stream.getvalue().count("\n") == limit
    records(log, 101.0, 1, line=2)  # others are not concerned
    assert stream.getvalue().count("\n") == limit + 1
    records(log, 100.0 + log_lines.WINDOW_SECONDS, 1, line=2)
    *_, summary, last = stream.getvalue().splitlines()
    assert f"7 lines like this one were left out: line {limit + 6} (" in summary
    assert " line 0 (" in last
    records(log, 50.0, 1)  # the clock was set back
    assert stream.getvalue().count("\n") == limit + 4


def test_lines_that_somebody_asked_for_are_all_written(
    root: logging.Logger, log: logging.Logger
) -> None:
    """DEBUG is switched on for a while by who wants to see each request, as Kafka's request logger has it."""
    stream = io.StringIO()
    log_lines.set_up(log_lines.TEXT, stream=stream)
    root.setLevel(logging.DEBUG)
    for number in range(2 * log_lines.LINES_MAX):
        log.debug("request %d", number)
    assert len(stream.getvalue().splitlines()) == 2 * log_lines.LINES_MAX


@pytest.mark.parametrize("how", [log_lines.TEXT, log_lines.JSON])
def test_what_a_client_sends_makes_no_line_of_its_own(
    how: str, root: logging.Logger, log: logging.Logger
) -> None:
    stream = io.StringIO()
    log_lines.set_up(how, stream=stream)
    log.info("client id %s", "a\r\n2026 ERROR\x1b[2J\x85\u2028\t\x7fä")
    log.info("group %s", "g" * 2 * log_lines.MESSAGE_CHARS_MAX)
    first, second = stream.getvalue().split("\n")[:-1]
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 or each == "\u2028" for each in first)
    shown = json.loads(first)["message"] if how == log_lines.JSON else first
    if how == log_lines.TEXT:
        assert "client id a\\r\\n2026 ERROR\\x1b[2J\\x85\\u2028\\t\\x7fä (" in shown
    assert len(second) < log_lines.MESSAGE_CHARS_MAX + 500
    assert f"… {log_lines.MESSAGE_CHARS_MAX + len('group ')} characters more" in second


def test_what_was_left_out_is_said_at_the_end(root: logging.Logger, log: logging.Logger) -> None:
    stream = io.StringIO()
    log_lines.set_up(log_lines.JSON, stream=stream)
    records(log, 100.0, log_lines.LINES_MAX + 3)
    (handler,) = root.handlers
    handler.close()
    assert json.loads(stream.getvalue().splitlines()[-1])["left_out"] == 3


def test_the_number_of_statements_watched_is_bounded(
    root: logging.Logger, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "STATEMENTS_MAX", 3)
    stream = io.StringIO()
    log_lines.set_up(log_lines.TEXT, stream=stream)
    for line in range(10):
        records(log, 100.0, 1, line=line)
    (handler,) = root.handlers
    assert isinstance(handler, log_lines.LimitedHandler)
    assert len(handler.windows) <= 3
    assert stream.getvalue().count("\n") == 10


def test_what_a_commit_means() -> None:
    def changed(topic: str, partition: int, leader: int, epoch: int) -> PartitionChanged:
        state = PartitionRegistration(
            replicas=(1, 2), isr=(leader,), leader=leader, leader_epoch=epoch
        )
        return PartitionChanged(topic=topic, topic_id=b"", partition=partition, registration=state)

    def configured(kind: int, name: str, key: str) -> ConfigChanged:
        return ConfigChanged(resource_type=kind, resource_name=name, name=key, value="secret")

    events = [
        TopicCreated(topic="new", topic_id=b""),
        changed("new", 0, 1, 0),
        changed("new", 1, 1, 0),
        configured(TOPIC_RESOURCE, "new", "retention.ms"),
        TopicDeleted(topic="old", topic_id=b""),
        changed("t", 3, 2, 7),
        configured(TOPIC_RESOURCE, "t", "retention.ms"),
        configured(TOPIC_RESOURCE, "t", "flush.ms"),
        configured(BROKER_RESOURCE, "", "log.retention.ms"),
        FenceBroker(broker_id=2, broker_epoch=5),
        UnfenceBroker(broker_id=2, broker_epoch=6),
    ]
    lines = list(lines_of(events, {}))
    assert [text for text, _ in lines] == [
        "topic new was created with 2 partitions",
        "topic old was deleted",
        "partition change for t-3: leader: 2, leaderEpoch: 7, isr: [2]",
        "Fencing broker 2 at epoch 5: its session has timed out, or it has stopped",
        "Unfencing broker 2 at epoch 6: it has caught up with the metadata",
        "settings of topic t were changed: retention.ms, flush.ms",
        "settings of all brokers were changed: log.retention.ms",
    ]
    assert lines[2][1] == {
        "topic": "t",
        "partition": 3,
        "leader": 2,
        "leader_epoch": 7,
        "isr": [2],
    }
    assert "secret" not in str(lines)


def test_the_partitions_of_a_broker_that_has_gone_are_one_line() -> None:
    moved = [
        PartitionChanged(
            topic="t",
            topic_id=b"t" * 16,
            partition=index,
            registration=PartitionRegistration(
                replicas=(1, 2, 3), isr=(1, 3), leader=1 if index % 3 else 3
            ),
        )
        for index in range(60)
    ]
    text = "partition change for 60 partitions of t: leader 1 has 40, leader 3 has 20"
    assert list(lines_of(moved, {})) == [
        (text, {"topic": "t", "partitions": 60, "leaders": {1: 40, 3: 20}})
    ]


def test_new_directories_are_no_new_leaders() -> None:
    """Brokers report where a new topic's replicas are, each in a commit of its own."""

    def changed(**changes: Any) -> list[Event]:
        state = PartitionRegistration(replicas=(1, 2), isr=(1, 2), leader=1)
        state = replace(state, **changes)
        return [PartitionChanged(topic="t", topic_id=b"t", partition=0, registration=state)]

    told: Logged = {}
    created = [TopicCreated(topic="t", topic_id=b"t"), *changed()]
    assert len(list(lines_of(created, told))) == 1
    assert not list(lines_of(changed(directories=(b"a", b""), partition_epoch=1), told))
    assert not list(lines_of(changed(directories=(b"a", b"b"), partition_epoch=2), told))
    ((text, _),) = lines_of(changed(isr=(1,), directories=(b"a", b"b"), partition_epoch=3), told)
    assert text == "partition change for t-0: leader: 1, leaderEpoch: 0, isr: [1]"
    assert list(lines_of([TopicDeleted(topic="t", topic_id=b"t")], told))
    assert told == {}
