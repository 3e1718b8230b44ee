"""Shell: what an erasure leaves behind while it runs, so that another run can finish it after a kill.

Rules of this file: an object in the lake for each topic, `_erasures/<topic>.json`, from before the first change until
all is undone or done. It holds the topic's own settings as they were, and places of records, but no key.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field

from broker.erasure.wanted import Runs
from kafka_ds.delta.store.store import Store
from kafka_ds.topic.names import erasure_file


@dataclass(slots=True)
class Unfinished:
    """One topic's."""

    topic_id: str
    settings: dict[str, str | None] | None = None
    """The topic's own settings before they were changed, None: it had none of that name. None in all: unchanged."""
    places: dict[int, Runs] = field(default_factory=dict)


def read(store: Store, topic: str, topic_id: str) -> Unfinished:
    """What an earlier run has left; nothing where there was none, or of another topic of that name."""
    with suppress(FileNotFoundError):
        found = json.loads(store.read(erasure_file(topic)))
        if found["topic_id"] == topic_id:
            places = {
                int(partition): [(low, high) for low, high in runs]
                for partition, runs in found["places"].items()
            }
            return Unfinished(topic_id, found["settings"], places)
    return Unfinished(topic_id)


def write(store: Store, topic: str, unfinished: Unfinished) -> None:
    """Keep it."""
    fields = {
        "topic_id": unfinished.topic_id,
        "settings": unfinished.settings,
        "places": {str(partition): runs for partition, runs in unfinished.places.items()},
    }
    store.put_durable(erasure_file(topic), json.dumps(fields).encode())


def remove(store: Store, topic: str) -> None:
    """Nothing is left to be done."""
    store.delete(erasure_file(topic))
