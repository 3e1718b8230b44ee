"""Shell: what the worker does for each operation that the broker may ask for.

Rules of this file: requests become calls of the storage, the metadata or the copier, and results become
headers and payloads; nothing is decided here. `writing` operations run in one thread, `reading` ones in several.
"""

from typing import Any

from broker.system import new_uuid
from broker.tier.copier import Copier
from broker.tier.crash_points import CrashPoints
from broker.tier.delta_metadata import DeltaMetadata
from broker.tier.delta_storage import DeltaStorage
from broker.tier.materialise import Materialiser
from broker.tier.messages import CopyRequest
from broker.tier.settings import TierSettings
from broker.tier.worker import Answer, Operation
from kafka_ds.wire.types import uuid_from_text

Header = dict[str, Any]


class Service:
    """The worker's operations over the lake."""

    def __init__(self, settings: TierSettings, crash_points: CrashPoints) -> None:
        self._storage = DeltaStorage.open(settings, crash_points)
        self._metadata = DeltaMetadata.open(settings, crash_points)
        self._materialiser = Materialiser.open(settings, crash_points, self._storage.delete_topic)
        self._copier = Copier(
            self._storage,
            self._metadata,
            node_id=settings.node_id,
            crash_points=crash_points,
            new_id=new_uuid,
        )

    def writing(self) -> dict[str, Operation]:
        """Operations that change the lake: one at a time."""
        return {
            "copy": self._copy,
            "delete_topic": self._delete_topic,
            "materialise": self._materialise,
        }

    def reading(self) -> dict[str, Operation]:
        """Operations that only read it."""
        return {
            "read": self._read,
            "offset_for_timestamp": self._offset_for_timestamp,
            "state": self._state,
        }

    def _copy(self, request: Header) -> Answer:
        answer = self._copier.copy(CopyRequest.of(request))
        self._storage.maintain(topic["topic"] for topic in request["topics"])
        self._metadata.maintain()
        return answer.header(), ()

    def _delete_topic(self, request: Header) -> Answer:
        self._storage.delete_topic(request["topic"], uuid_from_text(request["topic_id"]))
        return {}, ()

    def _materialise(self, request: Header) -> Answer:
        return {"version": self._materialiser.materialise(request["version"])}, ()

    def _read(self, request: Header) -> Answer:
        found = self._storage.read(
            request["topic"],
            uuid_from_text(request["topic_id"]),
            request["partition"],
            request["offset"],
            max_bytes=request["max_bytes"],
            committed_only=request["isolation_level"] == 1,
        )
        header = {
            "sizes": [len(each) for each in found.chunks],
            "next_offset": found.next_offset,
            "tiered_end": found.tiered_end,
            "log_start_offset": found.log_start_offset,
        }
        return header, found.chunks

    def _offset_for_timestamp(self, request: Header) -> Answer:
        found = self._storage.offset_for_timestamp(
            request["topic"],
            uuid_from_text(request["topic_id"]),
            request["partition"],
            request["timestamp_ms"],
        )
        return {"found": list(found) if found else None}, ()

    def _state(self, request: Header) -> Answer:
        states = []
        for topic, topic_id, partition in request["partitions"]:
            state = self._storage.state(topic, uuid_from_text(topic_id), partition)
            states.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "tiered_end": state.tiered_end,
                    "log_start_offset": state.log_start_offset,
                }
            )
        return {"partitions": states}, ()
