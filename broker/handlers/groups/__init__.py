"""Shell: groups: requests of members to their coordinator, offsets, and operators' questions.

TxnOffsetCommit is here because it goes to the group's coordinator.
"""

from broker.handlers.groups import (
    alter_share_group_offsets,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    delete_share_group_offsets,
    describe_groups,
    describe_share_group_offsets,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    txn_offset_commit,
)

__all__ = [
    "alter_share_group_offsets",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "delete_groups",
    "delete_share_group_offsets",
    "describe_groups",
    "describe_share_group_offsets",
    "heartbeat",
    "join_group",
    "leave_group",
    "list_groups",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "share_group_describe",
    "share_group_heartbeat",
    "streams_group_describe",
    "streams_group_heartbeat",
    "sync_group",
    "txn_offset_commit",
]
