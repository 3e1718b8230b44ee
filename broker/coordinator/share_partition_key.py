"""Pure: the name of a share partition, by which its coordinator is found."""

from __future__ import annotations

from typing import NamedTuple

from kafka_ds.protocol.types import uuid_text


class SharePartitionKey(NamedTuple):
    """A partition as one share group sees it; its text, `group:topicId:partition`, is its coordinator's key."""

    group_id: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}:{uuid_text(self.topic_id)}:{self.partition}"
