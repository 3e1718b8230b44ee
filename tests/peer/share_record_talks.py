"""A conversation about the records of a share group: what members acquire, and what becomes of acknowledgements."""

from __future__ import annotations

import re
import time
from typing import Any

from kafka_ds.protocol.messages import (
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    MetadataResponse,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
)
from kafka_ds.protocol.messages.configs import GROUP_RESOURCE
from kafka_ds.protocol.messages.topics import CreatableTopic
from kafka_ds.records.batch import iterate_headers
from tests.in_process import batch_of, produce_request
from tests.peer.group_talks import Talk
from tests.peer.share_talks import assigned, offsets
from tests.requests import build

TOPIC = GROUP = "shared"
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
SIZES = (3, 2, 4, 1)
RELEASE_S = 1.0


def _prepare(talk: Talk) -> None:
    """A topic with records, and a group that begins with them and whose share state is there."""
    new = build(CreatableTopic, name=TOPIC, num_partitions=1, replication_factor=1)
    create = CreateTopicsRequest(timeout_ms=5_000, topics=[new])
    talk.wait_for("a", lambda: create, 7, lambda _: True)
    asked = build(MetadataRequest, topics=[{"name": TOPIC}])

    def is_there(response: MetadataResponse) -> bool:
        talk.topic_ids[TOPIC] = response.topics[0].topic_id
        return not response.topics[0].error_code

    talk.wait_for("a", lambda: asked, 12, is_there)
    setting = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": GROUP, "configs": [setting]}
    alter = build(IncrementalAlterConfigsRequest, resources=[resource], validate_only=False)
    talk.wait_for("a", lambda: alter, 1, lambda found: not found.responses[0].error_code)
    for size in SIZES:
        batch = batch_of([b"x"] * size)
        talk.wait_for("a", lambda batch=batch: produce_request(TOPIC, batch, 0), 9, lambda _: True)
    assigned(talk, GROUP, "m", subscribed_topic_names=[TOPIC])


class _Member:
    """A member that says what it is told, but for the records themselves."""

    def __init__(self, talk: Talk, name: str) -> None:
        self._talk = talk
        self._name = name
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
        topics = [{"topic_id": self._talk.topic_ids[TOPIC], "partitions": [partition]}]
        request = build(
            ShareFetchRequest,
            group_id=GROUP,
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
        topics = [{"topic_id": self._talk.topic_ids[TOPIC], "partitions": [partition]}]
        request = build(
            ShareAcknowledgeRequest,
            group_id=GROUP,
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
    _prepare(talk)
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
    talk.ask("a", offsets(GROUP, {TOPIC: [0]}), 1)
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
    talk.ask("a", offsets(GROUP, {TOPIC: [0]}), 1)
    # Apache Kafka releases the records of an ended session some time after its answer.
    time.sleep(RELEASE_S)
    # What has failed often is delivered by itself.
    two.fetch(epoch=0, until_acquired=True)
