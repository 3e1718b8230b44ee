"""Pure: commits of batches as records of the decisions' topic: one for each batch, and one that it is finished.

The topic is compacted, and the keys decide what replaces what: the last commit of a prefix and its last finished batch
have a key each, so that a late record of an old batch hides no new commit. Keys and JSON fields are read by every later
version. For a reader a record of a later layout is an error, never a missing record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from kafka_ds.errors import UnknownLayout
from kafka_ds.sink.protocol import BatchAttempt, BatchCommit, LastCommit, Span

__all__ = [
    "UnknownLayout", "attempt_id", "commit_key", "commit_value", "finished_key", "finished_value", "is_attempt_of",
    "last_commit", "lock_id",
]  # fmt: skip

LAYOUT: Final = 1


def lock_id(prefix: str) -> str:
    """The transactional id of the deciding driver."""
    return f"{prefix}-driver"


def attempt_id(prefix: str, partition: int, attempt: int) -> str:
    """The transactional id of a task's attempt. Few are ever in use: brokers remember each one for days."""
    return f"{prefix}-{partition}-{attempt}"


def is_attempt_of(prefix: str, transactional_id: str) -> bool:
    """Whether it is an attempt's id under this prefix, and not under one that begins like it."""
    return re.fullmatch(re.escape(prefix) + r"-\d+-\d+", transactional_id) is not None


def commit_key(prefix: str) -> bytes:
    """The key of the last decision."""
    return prefix.encode()


def finished_key(prefix: str) -> bytes:
    """The key of the last finished batch."""
    return b"finished\x00" + prefix.encode()


def commit_value(batch_commit: BatchCommit) -> bytes:
    """As JSON: what ends the batch's transactions, or writes their records again."""
    document = {
        "layout": LAYOUT,
        "query": batch_commit.query,
        "batch": batch_commit.batch,
        "run": batch_commit.run,
        "earlier": batch_commit.earlier,
        "attempts": [
            {
                "transactional_id": attempt.transactional_id,
                "producer_id": attempt.producer_id,
                "epoch": attempt.epoch,
                "spans": [
                    [s.topic, s.partition, s.first_offset, s.last_offset, s.record_count]
                    for s in attempt.spans
                ],
            }
            for attempt in batch_commit.attempts
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def finished_value(batch_commit: BatchCommit) -> bytes:
    """As JSON: the batch that needs nothing any more."""
    document = {"layout": LAYOUT, "query": batch_commit.query, "batch": batch_commit.batch}
    return json.dumps(document, separators=(",", ":")).encode()


def last_commit(
    prefix: str, records: Iterable[tuple[bytes | None, bytes | None]], *, settled: bool
) -> LastCommit:
    """The last decision of a prefix out of all records of its partition, in their order."""
    keys = {commit_key(prefix): 0, finished_key(prefix): 1}
    found: list[bytes | None] = [None, None]
    for key, value in records:
        if key in keys:
            found[keys[key]] = value
    batch_commit, finished = (None if value is None else _document(value) for value in found)
    if batch_commit is None:
        return LastCommit(batch_commit=None, finished=False, settled=settled)
    attempts = tuple(
        BatchAttempt(
            transactional_id=attempt["transactional_id"],
            producer_id=attempt["producer_id"],
            epoch=attempt["epoch"],
            spans=tuple(_span(*fields) for fields in attempt["spans"]),
        )
        for attempt in batch_commit["attempts"]
    )
    done = BatchCommit(
        query=batch_commit["query"],
        batch=batch_commit["batch"],
        attempts=attempts,
        # Earlier versions recorded no runs.
        run=batch_commit.get("run"),
        earlier=tuple(batch_commit.get("earlier", ())),
    )
    is_finished = finished is not None and (finished["query"], finished["batch"]) == (
        done.query,
        done.batch,
    )
    return LastCommit(batch_commit=done, finished=is_finished, settled=settled)


def _document(value: bytes) -> dict:  # type: ignore[type-arg]
    document: dict = json.loads(value)  # type: ignore[type-arg]
    if document.get("layout") != LAYOUT:
        raise UnknownLayout(
            f"a commit record of layout {document.get('layout')}; this version of kafka-ds reads {LAYOUT}"
        )
    return document


def _span(topic: str, partition: int, first: int, last: int, count: int) -> Span:
    return Span(
        topic=topic,
        partition=partition,
        first_offset=first,
        last_offset=last,
        record_count=count,
    )
