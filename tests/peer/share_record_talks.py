"""Conversations about records of share groups: what is acquired, what becomes of acknowledgements, dead letters."""

from __future__ import annotations

import re
import time
from typing import Any

from kafka_ds.protocol.messages import (
    CreateTopicsRequest,
    FetchResponse,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    MetadataResponse,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
)
from kafka_ds.protocol.messages.configs import GROUP_RESOURCE
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.records.batch import iterate_headers, read_records
from tests.in_process import batch_of, fetch_request, produce_request
from tests.peer.group_talks import Talk
from tests.peer.share_talks import assigned, offsets
from tests.requests import build

# Of the first conversation, and of the one about dead letters.
SHARED, LETTERED, LETTERS = "shared", "lettered", "dlq.lettered"
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
SIZES = (3, 2, 4, 1)
RELEASE_S = 1.0


def _create(talk: Talk, topic: str, **configs: str) -> None:
    new = build(
        CreatableTopic,
        name=topic,
        num_partitions=1,
        replication_factor=1,
        configs=[{"name": name, "value": value} for name, value in configs.items()],
    )
    create = CreateTopicsRequest(timeout_ms=5_000, topics=[new])
    talk.wait_for("a", lambda: create, 7, lambda _: True)
    asked = build(MetadataRequest, topics=[{"name": topic}])

    def is_there(response: MetadataResponse) -> bool:
        talk.topic_ids[topic] = response.topics[0].topic_id
        return not response.topics[0].error_code

    talk.wait_for("a", lambda: asked, 12, is_there)


def _configure(talk: Talk, group: str, **configs: str) -> None:
    settings = [
        {"name": name, "config_operation": 0, "value": value} for name, value in configs.items()
    ]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": settings}
    alter = build(IncrementalAlterConfigsRequest, resources=[resource], validate_only=False)
    talk.wait_for("a", lambda: alter, 1, lambda found: not found.responses[0].error_code)


def _prepare(talk: Talk, name: str, **configs: str) -> None:
    """A topic with records, and a group of its name that begins with them and whose share state is there."""
    _create(talk, name)
    _configure(talk, name, **{"share.auto.offset.reset": "earliest"}, **configs)
    for size in SIZES:
        batch = batch_of([b"x"] * size)
        talk.wait_for("a", lambda batch=batch: produce_request(name, batch, 0), 9, lambda _: True)
    assigned(talk, name, "m", subscribed_topic_names=[name])


class _Member:
    """A member that says what it is told, but for the records themselves."""

    def __init__(self, talk: Talk, name: str, group: str = SHARED) -> None:
        self._talk = talk
        self._name, self._group = name, group
        self._epoch = 0

    def fetch(
        self,
        *acknowledged: tuple[Any, ...],
        until_acquired: bool = False,
        version: int = 2,
        **more: Any,
    ) -> None:
        epoch = more.pop("epoch", self._epoch)
        partition: dict[str, Any] = {
            "partition_index": 0,
            "acknowledgement_batches": _batches(acknowledged),
        }
        topics = [{"topic_id": self._talk.topic_ids[self._group], "partitions": [partition]}]
        request = build(
            ShareFetchRequest,
            group_id=self._group,
            member_id=self._name,
            share_session_epoch=epoch,
            topics=topics,
            **{"max_wait_ms": 200, "min_bytes": 1, "max_records": 500, "batch_size": 500} | more,
        )
        answers: list[Any] = []

        def is_it(response: Any) -> bool:
            answers.append(response)
            return not until_acquired or any(
                each.acquired_records for topic in response.responses for each in topic.partitions
            )

        self._talk.wait_for(self._name, lambda: request, version, is_it)
        response = answers[-1]
        if not response.error_code and epoch >= 0:
            self._epoch = epoch + 1
        told = [
            (
                each.error_code,
                each.acknowledge_error_code,
                [(a.first_offset, a.last_offset, a.delivery_count) for a in each.acquired_records],
                [(h.base_offset, h.last_offset) for _, h in iterate_headers(each.records or b"")],
            )
            for topic in response.responses
            for each in topic.partitions
        ]
        lock = response.acquisition_lock_timeout_ms
        said = f"{self._name} fetches {epoch} {acknowledged} {more}: {response.error_code:d} {lock} {told}"
        self._talk.said.append(said)

    def acknowledge(self, *acknowledged: tuple[Any, ...], version: int = 2, **more: Any) -> None:
        epoch = more.pop("epoch", self._epoch)
        partition = {"partition_index": 0, "acknowledgement_batches": _batches(acknowledged)}
        topics = [{"topic_id": self._talk.topic_ids[self._group], "partitions": [partition]}]
        request = build(
            ShareAcknowledgeRequest,
            group_id=self._group,
            member_id=self._name,
            share_session_epoch=epoch,
            topics=topics if acknowledged else [],
            **more,
        )
        response = self._talk.ask(self._name, request, version)
        # What Apache Kafka says of a record that is not acquired depends on how it keeps it.
        self._talk.said[-1] = re.sub(
            "'The (offset|batch) cannot be[^']*'", "…", self._talk.said[-1]
        )
        if not response.error_code and epoch >= 0:
            self._epoch = epoch + 1


def _batches(acknowledged: tuple[tuple[Any, ...], ...]) -> list[dict[str, Any]]:
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": list(kinds)}
        for first, last, *kinds in acknowledged
    ]


def records_of_a_share_group(talk: Talk) -> None:
    """Two members, from the first fetch to the end of their sessions."""
    _prepare(talk, SHARED)
    one, two = _Member(talk, "one"), _Member(talk, "two")
    one.fetch(epoch=3)
    one.acknowledge((0, 0, ACCEPT))
    one.fetch((0, 0, ACCEPT), epoch=0)
    one.fetch(until_acquired=True, max_records=4)
    one.fetch(epoch=7)
    two.fetch(until_acquired=True, max_records=1)
    two.acknowledge((0, 0, ACCEPT))
    two.acknowledge((5, 20, ACCEPT))
    two.acknowledge((6, 5, ACCEPT))
    two.acknowledge((5, 6, ACCEPT, ACCEPT, ACCEPT))
    two.acknowledge((5, 5, 9))
    two.acknowledge((5, 5, RENEW))
    two.acknowledge((5, 5, RENEW), is_renew_ack=True)
    two.acknowledge((5, 5, RENEW), version=1)
    one.acknowledge((0, 3, ACCEPT, ACCEPT, RELEASE, REJECT))
    one.acknowledge((0, 0, ACCEPT), (4, 4, GAP))
    one.acknowledge((2, 2, ACCEPT))
    two.acknowledge((5, 6, ACCEPT), (7, 8, RELEASE))
    two.fetch()
    two.acknowledge((2, 2, RELEASE), (7, 8, RELEASE))
    two.fetch((9, 9, ACCEPT), max_records=1, share_acquire_mode=1)
    one.fetch(max_records=2, share_acquire_mode=1)
    one.fetch(version=1)
    talk.ask("a", offsets(SHARED, {SHARED: [0]}), 1)
    one.fetch(max_records=0)
    one.fetch(max_bytes=0)
    one.fetch((7, 7, RENEW), is_renew_ack=True)
    one.fetch(
        (7, 7, RENEW), is_renew_ack=True, max_wait_ms=0, min_bytes=0, max_bytes=0, max_records=0
    )
    one.acknowledge(epoch=0)
    one.acknowledge(epoch=-1)
    one.acknowledge(epoch=-1)
    two.fetch(until_acquired=False, epoch=-1)
    two.fetch(epoch=-1)
    talk.ask("a", offsets(SHARED, {SHARED: [0]}), 1)
    # Apache Kafka releases the records of an ended session some time after its answer.
    time.sleep(RELEASE_S)
    # What has failed often is delivered by itself.
    two.fetch(epoch=0, until_acquired=True)


def _letters(talk: Talk, count: int) -> None:
    """Say what dead letters there are, once there are so many."""
    found: list[Any] = []

    def are_there(response: FetchResponse) -> bool:
        data = response.responses[0].partitions[0].records or b""
        found[:] = [
            (record.key, record.value, record.headers)
            for position, header in iterate_headers(data)
            for record in read_records(memoryview(data), position, header)
        ]
        return len(found) >= count

    talk.wait_for("a", lambda: fetch_request(LETTERS, 0), 12, are_there)
    talk.said.append(f"{count} dead letters: {found}")


def dead_letters_of_a_share_group(talk: Talk) -> None:
    """What is rejected, or delivered too often, is written to another topic, if that may be used (KIP-1191)."""
    _create(talk, LETTERS, **{"errors.deadletterqueue.group.enable": "true"})
    topic = {"errors.deadletterqueue.topic.name": LETTERS}
    _prepare(talk, LETTERED, **topic, **{"share.delivery.count.limit": "2"})
    member = _Member(talk, "one", LETTERED)
    member.fetch(epoch=0, until_acquired=True, max_records=1)
    member.acknowledge((0, 0, REJECT), (1, 1, RELEASE), (2, 2, ACCEPT))
    _letters(talk, 1)
    _configure(talk, LETTERED, **{"errors.deadletterqueue.copy.record.enable": "true"})
    member.fetch(until_acquired=True, max_records=1)
    member.acknowledge((1, 1, RELEASE))
    _letters(talk, 2)
    member.fetch(until_acquired=True, max_records=1)
    member.acknowledge((3, 4, REJECT))
    _letters(talk, 4)
    _configure(talk, LETTERED, **{"errors.deadletterqueue.topic.name": "dlq.nowhere"})
    member.fetch(until_acquired=True, max_records=1)
    member.acknowledge((5, 8, REJECT))
    member.fetch(until_acquired=True, max_records=1)
    member.acknowledge((9, 9, ACCEPT))
    time.sleep(RELEASE_S)
    member.fetch()
    _letters(talk, 4)
