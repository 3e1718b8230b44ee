"""The values of generated requests: for each field meaningful ones, and ones that should not occur.

A field is known by its struct and name, else by its name, else by its type, so that an API that is added later is drawn
from with no edit. `likely` are values with which a request succeeds, `odd` the mistakes that clients make. What stands
for an id that each broker chose itself is a symbol here (`symbol`, `PRODUCERS_FROM`), replaced before it is sent.
Requests that change something have topics of their own (`SCRATCH`), so that what others read stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka_ds.protocol.plan import FieldPlan, PlannedField
from kafka_ds.protocol.types import NO_UUID, Primitive
from kafka_ds.records.batch import Codec, Record, build_batch

# Topics with records that no request changes but by appending; those that come and go; those of transactions.
TOPICS = ("t", "u")
SCRATCH = ("s0", "s1", "s2")
TRANSACTED = ("x0", "x1")
STRANGE_ID = bytes([9] * 16)
PRODUCERS_FROM = 7_000_000_000
# A time long ago, so that every run writes the same bytes.
WRITTEN_MS = 1_700_000_000_000
# What both brokers are set to (message.max.bytes), so that too much is little.
MESSAGE_BYTES_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What a field may hold."""

    likely: Sequence[Any]
    odd: Sequence[Any] = ()


def symbol(topic: str) -> bytes:
    """What stands for a topic's id in a request that is not sent yet."""
    return b"id-of-" + topic.encode().ljust(10, b"\0")


def _batch(values: Sequence[bytes | None] = (b"one", None, b""), **header: Any) -> bytes:
    records = [
        Record(i, WRITTEN_MS + i, b"k" if i else None, value, ((b"h", b"1"), (b"h", None)))
        for i, value in enumerate(values)
    ]
    return build_batch(records, **header)


def _with_byte(batch: bytes, position: int, value: int) -> bytes:
    changed = bytearray(batch)
    changed[position] = value
    return bytes(changed)


_OLD_SET = bytes.fromhex("0000000000000000000000110000000001000000000000000000ff")
_PLAIN = _batch()
_LIKELY_RECORDS = (
    _PLAIN,
    _batch(codec=Codec.GZIP),
    _batch(codec=Codec.LZ4),
    _batch(codec=Codec.SNAPPY),
    _batch([b"x" * 500] * 3),
)
_ODD_RECORDS = (
    None,
    b"",
    b"\0",
    _PLAIN[:40],
    _PLAIN[:-1],
    _PLAIN + _PLAIN,
    _with_byte(_PLAIN, 70, 0x55),  # not what the checksum says
    _with_byte(_PLAIN, 16, 3),  # magic 3
    _with_byte(_PLAIN, 16, 1),
    _with_byte(_PLAIN, 7, 9),  # a base offset that is not 0
    _OLD_SET,
    _batch([b"y" * 30_000]),
    _batch(producer_id=PRODUCERS_FROM, producer_epoch=0, base_sequence=0),
    _batch(producer_id=99, producer_epoch=0, base_sequence=5),
    _batch(producer_id=99, producer_epoch=0, base_sequence=0, is_transactional=True),
)

_TOPIC = Pool(
    likely=TOPICS, odd=("nope", "", ".", "a b", "n" * 250, "__consumer_offsets", "t", "T")
)
_SCRATCH = Pool(likely=SCRATCH, odd=("nope", "", "..", "a/b", "n" * 250))
_TRANSACTED = Pool(likely=TRANSACTED, odd=("nope", "", "a b"))
_PARTITION = Pool(likely=(0, 1), odd=(0, 2, -1, 2**31 - 1))
_GROUP = Pool(likely=("pg", "ph"), odd=("", "never-seen", "g" * 300))
_TRANSACTION = Pool(likely=("tx", "ty"), odd=("", "never-seen"))
_USER = Pool(likely=("sue", "sam"), odd=("", "never-seen"))
_OFFSET = Pool(likely=(0, 1, 2), odd=(-1, -2, -3, 10**9, 2**63 - 1, -(2**63)))
_EPOCH = Pool(likely=(-1, 0), odd=(1, 5, -2, 2**31 - 1))
_PRODUCER = Pool(
    likely=(PRODUCERS_FROM, PRODUCERS_FROM + 1), odd=(-1, 0, 99_999_999, -2, 2**63 - 1)
)
_CONFIGS = Pool(
    likely=(
        "retention.ms",
        "cleanup.policy",
        "max.message.bytes",
        "compression.type",
        "segment.bytes",
    ),
    odd=(
        "nope",
        "",
        "min.insync.replicas",
        "message.format.version",
        "leader.replication.throttled.replicas",
    ),
)
_CONFIG_VALUES = Pool(
    likely=("100000", "delete"),
    odd=(
        None,
        "",
        "-1",
        "-2",
        "x",
        "compact",
        "compact,delete",
        "gzip",
        "1:0",
        "*",
        "99999999999999999999",
    ),
)

# By "Struct.field", else "field".
POOLS: dict[str, Pool] = {
    "acks": Pool(likely=(-1, 1), odd=(0, 2, -2)),
    "records": Pool(likely=_LIKELY_RECORDS, odd=_ODD_RECORDS),
    "timeout_ms": Pool(likely=(5_000,), odd=(5_000, 30_000)),
    "name": _TOPIC,
    "topic": _TOPIC,
    "topic_name": _TOPIC,
    "topic_names": _SCRATCH,
    "topic_id": Pool(likely=[symbol(name) for name in TOPICS], odd=(NO_UUID, STRANGE_ID)),
    "index": _PARTITION,
    "partition": _PARTITION,
    "partition_index": _PARTITION,
    "partitions": _PARTITION,
    "partition_indexes": _PARTITION,
    "group_id": _GROUP,
    "groups": _GROUP,
    "groups_names": _GROUP,
    "member_id": Pool(likely=("",), odd=("stranger",)),
    "group_instance_id": Pool(likely=(None,), odd=("instance", "")),
    "generation_id": Pool(likely=(-1,), odd=(0, 1, -2)),
    "generation_id_or_member_epoch": Pool(likely=(-1,), odd=(0, 1, -2)),
    "member_epoch": Pool(likely=(-1,), odd=(0, 1)),
    "committed_offset": _OFFSET,
    "committed_leader_epoch": _EPOCH,
    "committed_metadata": Pool(likely=("", "m"), odd=(None, "m" * 5_000)),
    "retention_time_ms": Pool(likely=(-1,), odd=(0, 1_000)),
    "offset": _OFFSET,
    "fetch_offset": _OFFSET,
    "log_start_offset": Pool(likely=(-1,), odd=(0, 5)),
    "timestamp": Pool(
        likely=(-1, -2, WRITTEN_MS, WRITTEN_MS + 1),
        odd=(-3, -4, -5, -6, -7, 0, 2**62, -(2**62)),
    ),
    "current_leader_epoch": _EPOCH,
    "last_fetched_epoch": Pool(likely=(-1,), odd=(0, 1)),
    "leader_epoch": Pool(likely=(0,), odd=(-1, 1, 5, 2**31 - 1)),
    "replica_id": Pool(likely=(-1,), odd=(-1, -2, -3)),
    "replica_epoch": Pool(likely=(-1,)),
    "replica_directory_id": Pool(likely=(NO_UUID,)),
    "high_watermark": Pool(likely=(2**63 - 1,)),
    "max_wait_ms": Pool(likely=(0,), odd=(10,)),
    "min_bytes": Pool(likely=(0, 1), odd=(10_000_000,)),
    "max_bytes": Pool(likely=(1 << 20,), odd=(0, 100, -1)),
    "partition_max_bytes": Pool(likely=(1 << 20,), odd=(0, 1, 100, -1)),
    "isolation_level": Pool(likely=(0, 1), odd=(2, -1)),
    "session_id": Pool(likely=(0,), odd=(77,)),
    "session_epoch": Pool(likely=(-1,), odd=(0, 1, -2)),
    "rack_id": Pool(likely=("",), odd=("r",)),
    "cluster_id": Pool(likely=(None,)),
    "key": Pool(likely=("pg", "tx"), odd=("", "never-seen")),
    "coordinator_keys": Pool(likely=("pg", "tx"), odd=("", "never-seen")),
    "key_type": Pool(likely=(0, 1), odd=(2, 3, -1)),
    "states_filter": Pool(likely=("Stable", "Empty"), odd=("empty", "nope", "")),
    "types_filter": Pool(likely=("classic", "Classic"), odd=("consumer", "nope", "")),
    "client_software_name": Pool(likely=("raw",), odd=("", "-", "a b")),
    "client_software_version": Pool(likely=("1.0",), odd=("", "_", "a b")),
    "num_partitions": Pool(likely=(1, 2), odd=(-1, 0, -2)),
    "replication_factor": Pool(likely=(1, -1), odd=(0, 2, -2)),
    "broker_ids": Pool(likely=(1,), odd=(2, -1)),
    "replicas": Pool(likely=(1,), odd=(2, -1)),
    "count": Pool(likely=(2, 3, 4), odd=(0, 1, -1)),
    "validate_only": Pool(likely=(False, True)),
    "value": _CONFIG_VALUES,
    "config_operation": Pool(likely=(0, 1), odd=(2, 3, 4, -1)),
    "resource_type": Pool(likely=(2,), odd=(4, 8, 16, 32, 0, 1, -1)),
    "resource_name": Pool(likely=TOPICS, odd=("1", "", "nope", "a b", "99")),
    "configuration_keys": _CONFIGS,
    "transactional_id": _TRANSACTION,
    "v3_and_below_transactional_id": _TRANSACTION,
    "transactional_ids": _TRANSACTION,
    "transaction_timeout_ms": Pool(likely=(600_000,), odd=(0, -1, 2**31 - 1)),
    "producer_id": _PRODUCER,
    "v3_and_below_producer_id": _PRODUCER,
    "producer_id_filters": Pool(likely=(PRODUCERS_FROM,), odd=(99_999_999,)),
    "producer_epoch": Pool(likely=(0,), odd=(-1, 1, 5, 32767)),
    "v3_and_below_producer_epoch": Pool(likely=(0,), odd=(-1, 1, 5)),
    "coordinator_epoch": Pool(likely=(0,), odd=(-1, 5)),
    "transaction_version": Pool(likely=(1, 2), odd=(0,)),
    "state_filters": Pool(likely=("Ongoing", "Empty"), odd=("ongoing", "nope", "")),
    "duration_filter": Pool(likely=(-1,), odd=(0, 10**12)),
    "transactional_id_pattern": Pool(likely=(None, "t.*"), odd=("", "[", "never")),
    "path": Pool(likely=("/nowhere",), odd=("", "relative")),
    "election_type": Pool(likely=(0, 1), odd=(2, -1)),
    "broker_id": Pool(likely=(99,), odd=(-1,)),
    "feature": Pool(likely=("nope",), odd=("", "metadata.version")),
    "max_version_level": Pool(likely=(1,), odd=(0, -1, 999)),
    "upgrade_type": Pool(likely=(1,), odd=(0, 2, 3, 4)),
    "endpoint_type": Pool(likely=(1,), odd=(2, 0, 3)),
    "response_partition_limit": Pool(likely=(2000, 1), odd=(0, -1)),
    "session_timeout_ms": Pool(likely=(30_000,), odd=(0, -1, 10, 2**31 - 1)),
    "rebalance_timeout_ms": Pool(likely=(30_000,), odd=(-1, 0)),
    "protocol_type": Pool(likely=("consumer",), odd=("", "other")),
    "protocol_name": Pool(likely=("range",), odd=("", "other", None)),
    "JoinGroupRequest.group_id": Pool(likely=("new",), odd=("",)),
    "JoinGroupRequestProtocol.name": Pool(likely=("range", "roundrobin"), odd=("",)),
    "reason": Pool(likely=(None, "why"), odd=("",)),
    # No client has such a name, and no quota is so small that anybody waits.
    "entity_type": Pool(likely=("user", "client-id"), odd=("ip", "nope", "", "USER")),
    "entity_name": Pool(likely=("sue", "sam"), odd=(None, "", "127.0.0.9", "10.0.0.300", "a b")),
    "QuotaOpData.key": Pool(
        likely=("producer_byte_rate", "consumer_byte_rate", "request_percentage"),
        odd=("controller_mutation_rate", "connection_creation_rate", "nope", ""),
    ),
    # What is no number, or has no end, is refused here, and by Kafka for some quotas.
    "QuotaOpData.value": Pool(likely=(1e9, 2e9), odd=(0.0, -1.0, 1e9 + 0.5, 3e9, 1e19)),
    "QuotaOpData.remove": Pool(likely=(False,), odd=(True,)),
    "match_type": Pool(likely=(0, 2), odd=(1, 3, -1)),
    "match": Pool(likely=("sue", None), odd=("", "127.0.0.9")),
    "UserName.name": _USER,
    "ScramCredentialDeletion.name": _USER,
    "ScramCredentialUpsertion.name": _USER,
    "mechanism": Pool(likely=(1, 2), odd=(0, 3, -1)),
    "iterations": Pool(likely=(4096, 8192), odd=(4095, 16384, 16385, 0, -1)),
    # Without bytes they are refused here; Kafka takes such a salt, and fails over such a password.
    "salt": Pool(likely=(b"salt" * 4,)),
    "salted_password": Pool(likely=(b"p" * 32, b"p" * 64), odd=(b"short",)),
    "group_ids": _GROUP,
    "ConsumerGroupHeartbeatRequest.group_id": Pool(likely=("beat",), odd=("",)),
    "ConsumerGroupHeartbeatRequest.member_id": Pool(likely=("member",), odd=("",)),
    "ConsumerGroupHeartbeatRequest.member_epoch": Pool(likely=(0,), odd=(1, -1, -2, -3)),
    "ConsumerGroupHeartbeatRequest.rack_id": Pool(likely=(None, "r"), odd=("",)),
    "instance_id": Pool(likely=(None, "instance"), odd=("",)),
    "subscribed_topic_names": _TOPIC,
    "subscribed_topic_regex": Pool(likely=(None,), odd=("t.*", "[", "")),
    "server_assignor": Pool(likely=(None, "uniform", "range"), odd=("nope", "")),
    "SaslHandshakeRequest.mechanism": Pool(likely=("PLAIN", "SCRAM-SHA-256"), odd=("", "nope")),
    "auth_bytes": Pool(likely=(b"\0sue\0secret",), odd=(b"", b"n,,n=sue,r=nonce")),
    "CreatableTopic.name": _SCRATCH,
    "CreatableTopicConfig.name": _CONFIGS,
    "CreatePartitionsTopic.name": _SCRATCH,
    "DeleteTopicState.name": _SCRATCH,
    "DeleteTopicState.topic_id": Pool(likely=[symbol(s) for s in SCRATCH], odd=(NO_UUID, STRANGE_ID)),
    "DeleteRecordsTopic.name": _SCRATCH,
    "AlterConfigsResource.resource_name": Pool(likely=SCRATCH, odd=("", "nope", "99")),
    "AlterableConfig.name": _CONFIGS,
    "IncrementalAlterConfigsResource.resource_name": Pool(likely=SCRATCH, odd=("", "nope", "99")),
    "IncrementalAlterableConfig.name": _CONFIGS,
    "AddPartitionsToTxnTopic.name": _TRANSACTED,
    "TxnOffsetCommitRequestTopic.name": _TRANSACTED,
    "WritableTxnMarkerTopic.name": _TRANSACTED,
}  # fmt: skip

_BY_TYPE: dict[str, Pool] = {
    "boolean": Pool(likely=(False, True)),
    "string": Pool(likely=("",), odd=("nope",)),
    "uuid": Pool(likely=(NO_UUID,), odd=(STRANGE_ID,)),
    "bytes": Pool(likely=(b"",), odd=(b"\0\1",)),
    "f64": Pool(likely=(1.0,), odd=(0.0, -1.0)),
    "u16": Pool(likely=(0, 1), odd=(7, 2**16 - 1)),
}
_NUMBER = Pool(likely=(0, 1), odd=(-1, 7))


def pool_of(struct: type, field: PlannedField, kind: FieldPlan) -> Pool:
    """What a field of one value, or each element of an array of such, may hold."""
    assert isinstance(kind, Primitive), kind
    default = _BY_TYPE.get(kind.name, _NUMBER)
    found = POOLS.get(f"{struct.__name__}.{field.name}") or POOLS.get(field.name, default)
    # Another API may have a field of this name for something else.
    fits = kind.name == "records" or {type(each) for each in found.likely} & {
        type(each) for each in default.likely
    }
    return found if fits else default
