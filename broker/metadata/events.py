"""Pure: the cluster's metadata records, as the values that its metadata log holds.

- An event has the whole new state, not the change: `PartitionChanged` carries the partition's whole registration. So
  one event is one row that SQL can read without its neighbours.
- Ids are 16 raw bytes here and Kafka's text in JSON, as everywhere.
- JSON is flat, and its keys are the field names, which are the columns of the table's rows. A reader skips unknown
  keys. An event of an unknown type is an error: a broker must not act on a cluster that it only half understands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints

from kafka_ds.protocol.topic_partition import TopicPartition
from kafka_ds.protocol.types import uuid_from_text, uuid_text
from kafka_ds.topic.metadata_table import NO_BROKER_EPOCH

NO_LEADER = -1
RECOVERED = 0
RECOVERING = 1
# What the leader of a replicated partition asks for that is to be diskless, and that of a diskless one which is to have
# replicas again; no registration has them.
TO_DISKLESS, TO_REPLICATED = 2, 3
# Directory ids that name no directory (KIP-858): not assigned yet, failed, and one of an older release.
UNASSIGNED_DIRECTORY = bytes(16)
LOST_DIRECTORY = bytes(15) + b"\x01"
MIGRATING_DIRECTORY = bytes(15) + b"\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A broker's address for one listener."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeature:
    """The levels of a feature that a broker can work at (KIP-584)."""

    name: str
    lowest: int
    highest: int


class WalId(NamedTuple):
    """The write-ahead log of one incarnation of a broker (docs/concepts/diskless.md)."""

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRegistration:
    """What the controller knows of a partition; `partition_epoch` is the token of each change.

    `replicas` begins with the preferred leader; a diskless partition has only its leader there, and `preferred` is the
    broker to which it was assigned. `isr`, and without one `elr`, hold all that was committed; one of them may lead.
    `last_known_elr` is the last leader of a partition that has neither (KIP-966). `directories` are those of
    `replicas`, one each, or none if no broker has reported them (KIP-858). `wals`, of diskless topics alone, are all
    write-ahead logs that may hold records above the end of the table, the last leader's last; only what leaders of the
    epoch `wals_since` and later have written there counts.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: int = RECOVERED
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    directories: tuple[bytes, ...] = ()
    wals: tuple[WalId, ...] = ()
    wals_since: int = 0
    preferred: int = NO_LEADER

    @property
    def preferred_leader(self) -> int:
        """The broker that shall lead whenever it can."""
        return self.replicas[0] if self.preferred == NO_LEADER else self.preferred

    @property
    def is_diskless(self) -> bool:
        """Whether its records are put into write-ahead logs of the lake, so that any broker may lead it."""
        return bool(self.wals)

    def directory_of(self, broker_id: int) -> bytes:
        """The directory in which this broker has its replica, as far as that is known (KIP-858)."""
        if not self.directories or broker_id not in self.replicas:
            return UNASSIGNED_DIRECTORY
        return self.directories[self.replicas.index(broker_id)]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaComponent:
    """One part of a quota's entity: the type (`user`, `client-id`, `ip`) and the name, None for the type's default."""

    entity_type: str
    entity_name: str | None


class Event:
    """One entry of the metadata log; its type is the name of its class."""

    __slots__ = ()
    types: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        # With slots=True the decorator makes a second class of the name: the last one counts.
        Event.types[cls.__name__] = cls


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCreated(Event):
    """The first event of every metadata log: the cluster's id."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFenced(Event):
    """The cluster goes on in another lake, at this address: no broker may write to this one any more."""

    successor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPromoted(Event):
    """The cluster goes on in the lake at this address, which was a copy: a fence before this holds no longer."""

    lake: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerChange(Event):
    """This broker is the controller from now on; controllers with a lower epoch resign."""

    controller_id: int
    controller_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(Event):
    """A broker's process has started; `previous_broker_epoch` shows whether it had stopped cleanly.

    A `broker_epoch` of -1, as earlier releases wrote it, is that of the event's own place. `log_dirs` are the ids of
    the directories that work; none: the broker does not report them; LOST_DIRECTORY alone: all have failed.
    """

    broker_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    previous_broker_epoch: int = NO_BROKER_EPOCH
    broker_epoch: int = NO_BROKER_EPOCH
    fenced: bool = False
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    cordoned_log_dirs: tuple[bytes, ...] = ()
    features: tuple[SupportedFeature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker(Event):
    """This broker's session has ended, or it has stopped: it leads nothing until it is unfenced."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker(Event):
    """This broker has caught up with the metadata: it may lead."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChanged(Event):
    """A broker that stays registered is about to stop, or has lost or got back directories, or cordoned them."""

    broker_id: int
    broker_epoch: int
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnregistered(Event):
    """A broker was unregistered; its id may be used again, its epoch never.

    In a snapshot, with the id -1, it has the highest epoch that any broker ever had.
    """

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelChanged(Event):
    """The cluster uses this level of a feature from now on (KIP-584)."""

    name: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated(Event):
    """A topic exists; its partitions and settings follow in the same commit."""

    topic: str
    topic_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(Event):
    """A topic and all that belonged to it is deleted; its name may be used again, its id never."""

    topic: str
    topic_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanged(Event):
    """The new state of a partition, whole."""

    topic: str
    topic_id: bytes
    partition: int
    registration: PartitionRegistration

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged(Event):
    """A setting of a topic, broker, group or subscription; a null value takes it back to its default."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock(Event):
    """These producer ids belong to this broker, whether it ever gives them out or not (KIP-730)."""

    broker_id: int
    first_producer_id: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AclCreated(Event):
    """An ACL allows or denies operations on resources from now on; the numbers are Kafka's."""

    acl_id: bytes
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AclDeleted(Event):
    """The ACL of this id is deleted."""

    acl_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaChanged(Event):
    """A quota of the entity that these parts make up; a null value removes it."""

    entity: tuple[QuotaComponent, ...]
    name: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentialChanged(Event):
    """A user has this credential for this mechanism.

    The log does not have the credential itself: `credential` names the object of the lake that holds it, which was
    durable before this event.
    """

    user: str
    mechanism: str
    iterations: int
    credential: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentialDeleted(Event):
    """A user has no credential for this mechanism any more."""

    user: str
    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenChanged(Event):
    """There is a token of this id, or it expires at another time; times are milliseconds since 1970 (KIP-48).

    The token's secret follows from its id and delegation.token.secret.key, which is not here. Principals are texts.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenDeleted(Event):
    """The token of this id has expired, or was made to."""

    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Event):
    """The whole state as events, so that a starting broker reads nothing older than this."""

    events: tuple[Event, ...]


def to_json(event: Event) -> dict[str, Any]:
    """An event as the object that lies in the log."""
    return {"type": type(event).__name__, **_plain_fields(event)}


def from_json(data: Mapping[str, Any]) -> Event:
    """The event in an object of the log; ValueError says what cannot be decoded."""
    name = data.get("type")
    cls = Event.types.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"unknown type of event: {name!r}")
    event: Event = _read_fields(cls, data)
    return event


def _plain_fields(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    cls: type = type(value)
    for name in _names(cls):
        item = getattr(value, name)
        if isinstance(item, PartitionRegistration):
            plain |= _plain_fields(item)
            if not item.is_diskless:
                # Most are not, and there may be hundreds of thousands.
                del plain["wals"], plain["wals_since"], plain["preferred"]
        else:
            plain[name] = _plain(item)
    return plain


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def _plain(value: Any) -> Any:
    if type(value) is int:
        return value  # Most are.
    match value:
        case bytes():
            return uuid_text(value)
        case tuple():
            return [_plain(item) for item in value]
        case Event():
            return to_json(value)
        case Endpoint() | SupportedFeature() | QuotaComponent():
            return _plain_fields(value)
        case _:
            return value


def _read_fields(cls: type, data: Mapping[str, Any]) -> Any:
    try:
        values = {
            name: read(data if name == "registration" else data[name])
            for name, read in _readers(cls).items()
            if name in data or name == "registration"
        }
        return cls(**values)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a {cls.__name__}: {error}") from error


@cache
def _readers(cls: type) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in fields(cls)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    if hint is bytes:
        return uuid_from_text
    if hint is WalId:
        return _read_wal
    if get_origin(hint) is tuple:
        item = _reader(get_args(hint)[0])
        return lambda values: tuple(map(item, values))
    if hint is Event:
        return from_json
    if hint in (Endpoint, PartitionRegistration, SupportedFeature, QuotaComponent):
        return lambda data: _read_fields(hint, data)
    allowed = get_args(hint) or (hint,)

    def checked(value: Any) -> Any:
        if type(value) not in allowed:
            raise ValueError(f"{value!r} is no {hint}")
        return value

    return checked


def _read_wal(value: Any) -> WalId:
    if type(value) is not list or [type(each) for each in value] != [int, int]:
        raise ValueError(f"{value!r} is no write-ahead log")
    return WalId(*value)


def encode_events(events: Sequence[Event]) -> bytes:
    """Events as they are sent between brokers."""
    return encode_listed([to_json(event) for event in events])


def encode_listed(listed: Sequence[Mapping[str, Any]]) -> bytes:
    """The same, of events that are JSON objects already."""
    return json.dumps(listed, separators=(",", ":")).encode()


def decode_events(data: bytes | bytearray | memoryview) -> list[Event]:
    """Events as they came from another broker; ValueError if they cannot be understood."""
    listed = json.loads(bytes(data))
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError("a commit is a list of events")
    return [from_json(each) for each in listed]
