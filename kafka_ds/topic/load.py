"""Shell: what a bulk load leaves in the lake for the brokers: which files it wrote, with which offsets.

A load writes a topic's files before there is the topic. What it wrote is listed in one object, which the topic's
setting `lake.load` names; the leaders commit what is listed (docs/decisions/0028-bulk-load.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from kafka_ds.delta.store.store import Store
from kafka_ds.topic.names import LOADS, data_file

# Of the rows: the leader that commits them is the first that the topic has.
LEADER_EPOCH = 0


class BadLoad(Exception):
    """What is listed is no load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """One Parquet file of a load; its rows have the offsets from `min_offset` to `max_offset`."""

    partition: int
    min_offset: int
    max_offset: int
    size: int
    log_bytes: int
    """What its records would be in a log, about."""
    min_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def rows(self) -> int:
        return self.max_offset - self.min_offset + 1

    def path(self, load: str) -> str:
        """Relative to the topic's table."""
        return data_file(self.partition, self.min_offset, load)


def load_folder(load: str) -> str:
    """The folder of what a load needs beside the topic's files."""
    return f"{LOADS}/{load}"


def load_file(load: str) -> str:
    """The object that lists what a load wrote: there, the topic may be made; and as long as it is, nothing goes."""
    return f"{load_folder(load)}/files.json"


def owner_file(load: str) -> str:
    """The object that holds the id of the topic that has the load, once a leader has seen it."""
    return f"{load_folder(load)}/topic"


def offsets_folder(load: str) -> str:
    """Where the tasks of a load agree on their offsets."""
    return f"{load_folder(load)}/offsets"


def offsets_file(load: str, number: int) -> str:
    """One link of the chain in which they do: where each partition ends after so many files."""
    return f"{offsets_folder(load)}/{number:020d}.json"


def number_of(path: str) -> int | None:
    """Which link that is; None for other files, as one that is being written."""
    digits, _, suffix = path.rpartition("/")[2].partition(".")
    return int(digits) if digits.isdecimal() and suffix == "json" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a load wrote."""

    partition_count: int
    """Partitions from this number on were added later: the load knows nothing of them."""
    files: Mapping[int, tuple[LoadedFile, ...]]
    """By partition, each partition's by offset."""


def encode_load(topic: str, partition_count: int, files: Iterable[LoadedFile]) -> bytes:
    """The list of a load's files."""
    told = {
        "topic": topic,
        "partitions": partition_count,
        "files": [asdict(each) for each in files],
    }
    return json.dumps(told, separators=(",", ":")).encode()


def decode_load(data: bytes, topic: str) -> Load:
    """What was written. Raises BadLoad."""
    try:
        told = json.loads(data)
        files = [
            LoadedFile(**{name: _number(number) for name, number in each.items()})
            for each in told["files"]
        ]
        owner, partition_count = told["topic"], _number(told["partitions"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadLoad(f"its list of files cannot be read: {error}") from None
    if owner != topic:
        raise BadLoad(f"it was written for topic {owner}")
    found: dict[int, list[LoadedFile]] = {}
    for each in sorted(files, key=lambda file: file.min_offset):
        if each.partition >= partition_count:
            raise BadLoad(f"it has {partition_count} partitions, and files of {each.partition}")
        mine = found.setdefault(each.partition, [])
        if each.min_offset <= (mine[-1].max_offset if mine else -1):
            raise BadLoad(f"partition {each.partition} has offset {each.min_offset} twice")
        if each.max_offset < each.min_offset:
            raise BadLoad(f"partition {each.partition} has a file without rows")
        mine.append(each)
    return Load(
        partition_count=partition_count,
        files={partition: tuple(mine) for partition, mine in found.items()},
    )


def forget_load(store: Store, load: str) -> None:
    """Remove what a bulk load needed beside its topic's files. Raises OSError.

    The list goes first: without it nobody can load, so nobody needs to know whose load it was.
    """
    store.delete(load_file(load))
    for entry in store.list(load_folder(load)):
        store.delete(entry.path)


def _number(told: object) -> int:
    if type(told) is not int or told < 0:
        raise ValueError(f"{told!r} is no number")
    return told
