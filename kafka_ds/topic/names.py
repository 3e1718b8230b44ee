"""Pure: where things lie in the lake, and what they are called in a table's log.

Names of files sort by start offset. Each ends with the id of its attempt, so that every try has files of its own and a
copy can be repeated whoever else is writing. Ids are spelled as in Kafka (22 characters). They may contain dashes, so
names are parsed by length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from kafka_ds.delta.names import LOG_FOLDER
from kafka_ds.protocol.types import NO_UUID, uuid_from_text, uuid_text

TOPICS = "topics"
# A key of a table's configuration.
TOPIC_ID_KEY = "kafkaDs.topicId"
REMOTE_LOG_METADATA = "__remote_log_metadata"
CLUSTER_METADATA = "__cluster_metadata"
OFFSETS = "__offsets"
# A topic, into which brokers write what clients push.
CLIENT_METRICS = "__client_metrics"
# Secrets of the cluster, an object each; not a table, and for brokers only.
CREDENTIALS = "_credentials"
# What is being erased from a topic, an object each while that lasts.
ERASURES = "_erasures"
# Used by bulk loads until their topics are there, a folder each.
LOADS = "_loads"
# The output of `kafka-ds pipelines run`, a table per topic, and the suffix of the errors tables.
TYPED_TABLES = "tables"
ERRORS = "__errors"
# Begins with an underscore: VACUUM of every engine skips it.
RESIDUE = "_residue"
# The same: Iceberg's metadata of the table; behind it the name of a catalog, where that has it.
ICEBERG = "_iceberg"
# A folder that is in the lake of each cluster from its beginning on: before a broker has a worker, or any topic.
CLUSTER_MARK = f"{CLUSTER_METADATA}/{LOG_FOLDER}"
ID_CHARACTERS = 22
_OFFSET_DIGITS = 20

# Marks a file that is to be recompressed (`optimize`).
_LIGHT = "light-"
_DATA_FILE = re.compile(rf"(?:.*/)?\d{{20}}-({_LIGHT})?[A-Za-z0-9_-]{{{ID_CHARACTERS}}}\.parquet")
_APP_ID = re.compile(rf"([A-Za-z0-9_-]{{{ID_CHARACTERS}}})-(\d+)(-start|-epoch)?")
_MISSING = "kafkaDs-missing-"
_MISSING_ID = re.compile(rf"{_MISSING}([A-Za-z0-9_-]{{{ID_CHARACTERS}}})-(\d+)-(\d+)-(\d+)-(.+)")
_DELETED = re.compile(rf"[A-Za-z0-9_-]{{{ID_CHARACTERS}}}-deleted")


def topic_table(topic: str) -> str:
    """The folder of a topic's table."""
    return f"{TOPICS}/{topic}"


def erasure_file(topic: str) -> str:
    """The object that is there while records of a topic are being erased."""
    return f"{ERASURES}/{topic}.json"


def topic_id_of(configuration: Mapping[str, str]) -> bytes | None:
    """The incarnation of the topic that a table's rows are of; None where it was deleted, and of other tables."""
    with suppress(ValueError):
        found = uuid_from_text(configuration.get(TOPIC_ID_KEY, ""))
        return None if found == NO_UUID else found
    return None


def data_file(partition: int, start_offset: int, attempt: str, *, is_light: bool = False) -> str:
    """A Parquet file, relative to its table; a light one has a low compression level."""
    mark = _LIGHT if is_light else ""
    return f"partition={partition}/{start_offset:020d}-{mark}{attempt}.parquet"


# The same for Arrow, of paths as the log spells them.
DATA_FILE_PATTERN = (
    f"^(?:.*/)?[0-9]{{{_OFFSET_DIGITS}}}-(?:{_LIGHT})?[A-Za-z0-9_-]{{{ID_CHARACTERS}}}[.]parquet$"
)


def is_data_file(path: str) -> bool:
    """Whether a file is named like those written here: in offset order, in small row groups."""
    return _DATA_FILE.fullmatch(path) is not None


def is_light_file(path: str) -> bool:
    """Whether a file was written here with a low compression level."""
    match = _DATA_FILE.fullmatch(path)
    return match is not None and match[1] is not None


def residue_file(partition: int, start_offset: int, attempt: str) -> str:
    """A residue file, relative to the table."""
    return f"{RESIDUE}/partition={partition}/{start_offset:020d}-{attempt}.residue"


def start_of_residue(path: str) -> int | None:
    """The offset with which a residue file begins, by its name; None for a file of another name."""
    digits = path.rpartition("/")[2][:_OFFSET_DIGITS]
    return int(digits) if digits.isdecimal() else None


QUARANTINE_PREFIX = "kafkaDs-quarantine-"


class AppIdKind(Enum):
    """What the version of a `txn` action means: the greatest holds."""

    HIGHEST_OFFSET = ""
    """The last offset that is in the table."""
    LOG_START = "-start"
    """The log start offset: rows below it are deleted, whether or not their files are."""
    LEADER_EPOCH = "-epoch"
    """The highest leader epoch that wrote: a leader of a lower one writes no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppId:
    """The application id of a `txn` action of kafka-ds."""

    topic_id: bytes
    partition: int
    kind: AppIdKind


def app_id(topic_id: bytes, partition: int, kind: AppIdKind) -> str:
    """The text of an application id: topic id, partition, and what its version means."""
    return f"{uuid_text(topic_id)}-{partition}{kind.value}"


def deleted_mark(topic_id: bytes) -> str:
    """The application id whose presence means that the topic of this id was deleted."""
    return f"{uuid_text(topic_id)}-deleted"


def is_deleted_mark(text: str) -> bool:
    """Whether an application id means that some topic was deleted."""
    return _DELETED.fullmatch(text) is not None


def undecodable_mark(topic_id: bytes, partition: int) -> str:
    """The application id whose version is the last offset of a partition's batches that are no rows, but residue."""
    return f"kafkaDs-undecodable-{uuid_text(topic_id)}-{partition}"


def loaded_mark(topic_id: bytes, partition: int) -> str:
    """The application id whose presence says that a partition has what the topic's bulk load wrote for it.

    Its version is how many partitions that load knew.
    """
    return f"kafkaDs-loaded-{uuid_text(topic_id)}-{partition}"


def loaded_partition(text: str, topic_id: bytes) -> int | None:
    """The partition of such a mark of this topic; None for other application ids."""
    number = text.rpartition("-")[2]
    if not number.isdecimal() or text != loaded_mark(topic_id, int(number)):
        return None
    return int(number)


def cleaned_mark(topic_id: bytes, partition: int) -> str:
    """The application id whose version is the offset below which overtaken rows have left a compacted topic's table."""
    return f"kafkaDs-cleaned-{uuid_text(topic_id)}-{partition}"


def cleaned_at_mark(topic_id: bytes, partition: int) -> str:
    """The application id whose version is the time in milliseconds at which they had left."""
    return f"kafkaDs-cleaned-ms-{uuid_text(topic_id)}-{partition}"


def complaint_mark(version: int) -> str:
    """The application id whose presence says that a foreign commit was reported."""
    return f"kafkaDs-foreign-{version}"


def quarantine_mark(action_path: str) -> str:
    """The application id that marks a file's rows as not a topic's records; a version of -1 takes it back."""
    return QUARANTINE_PREFIX + action_path


def quarantined_path(text: str) -> str | None:
    """The file of a quarantine mark, as the log spells it; None for other application ids."""
    return text.removeprefix(QUARANTINE_PREFIX) if text.startswith(QUARANTINE_PREFIX) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRange:
    """Offsets, both inclusive, of a file that a RESTORE removed from a topic's table."""

    topic_id: bytes
    partition: int
    start_offset: int
    end_offset: int
    action_path: str


def missing_mark(missing: MissingRange) -> str:
    """The application id whose version is that of the RESTORE which removed a range; -1 once it is settled."""
    place = f"{uuid_text(missing.topic_id)}-{missing.partition}"
    return f"{_MISSING}{place}-{missing.start_offset}-{missing.end_offset}-{missing.action_path}"


def missing_range(text: str) -> MissingRange | None:
    """The range of such an application id, None for others."""
    match = _MISSING_ID.fullmatch(text) if text.startswith(_MISSING) else None
    if match is None:
        return None
    try:
        topic_id = uuid_from_text(match[1])
    except ValueError:
        return None
    return MissingRange(
        topic_id=topic_id,
        partition=int(match[2]),
        start_offset=int(match[3]),
        end_offset=int(match[4]),
        action_path=match[5],
    )


def parse_app_id(text: str) -> AppId | None:
    """The parts of an application id of kafka-ds, None for others."""
    match = _APP_ID.fullmatch(text)
    if match is None:
        return None
    try:
        topic_id = uuid_from_text(match[1])
    except ValueError:
        return None
    return AppId(topic_id=topic_id, partition=int(match[2]), kind=AppIdKind(match[3] or ""))
