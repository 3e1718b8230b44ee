"""Pure: batches of `__consumer_offsets` as events of the machine: records, and the ends of transactions.

Rules of this file: a value that cannot be understood (of a later Kafka, say) is an error, because the offsets loaded
without it might be old. A key that cannot be understood concerns nothing that we know, and is skipped.
"""

from __future__ import annotations

from broker.groups.shard import GroupShard
from broker.groups.values import NO_PRODUCER_ID
from kafka_ds.wire.batch import BatchHeader, ControlType, Record, control_type, read_records
from kafka_ds.wire.errors import MalformedFrame
from kafka_ds.wire.messages.persisted import GroupMetadataValue, decode_key, decode_value


def replay_batch(
    shard: GroupShard, data: bytes | bytearray, position: int, header: BatchHeader
) -> int:
    """Replay the batch of this header; returns how many records it had. Raises CorruptRecord or MalformedFrame."""
    records = read_records(data, position, header)
    if header.is_control:
        for record in records:
            control = control_type(record)
            if control in (ControlType.COMMIT, ControlType.ABORT):
                committed = control == ControlType.COMMIT
                shard.replay_end_of_transaction(header.producer_id, committed=committed)
    else:
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in records:
            _replay(shard, record, producer_id)
    return len(records)


def _replay(shard: GroupShard, record: Record, producer_id: int) -> None:
    try:
        key = decode_key(record.key or b"")
    except MalformedFrame:
        return
    if key is not None:
        value = None if record.value is None else decode_value(key, record.value)
        if isinstance(value, GroupMetadataValue):
            _check_members(value)
        shard.replay(key, value, record_offset=record.offset, producer_id=producer_id)


def _check_members(value: GroupMetadataValue) -> None:
    """No member, and no instance, is in a group twice: what says so was not written by a coordinator."""
    names = [member.member_id for member in value.members]
    instances = [m.group_instance_id for m in value.members if m.group_instance_id is not None]
    if len({*names}) < len(names) or len({*instances}) < len(instances):
        raise MalformedFrame("a group has a member twice")
