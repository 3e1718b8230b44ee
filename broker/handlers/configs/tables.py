"""Pure: changes of settings that a topic with a Delta table may not make.

See docs/decisions/0019-tables-of-compacted-topics.md and KIP-950:
- The table may have records that exist nowhere else, so a topic gives up its table only if its rows may be deleted.
- A topic that is a table by default, and becomes compacted, remains a table: nothing is compacted before it is in the
  table. That is kept beside its settings (`REMOTE_STORAGE_KEPT`), and clients see no setting that they have not made: a
  tool that declares topics would remove it again.
- A compacted topic that is a table remains both. Compaction has removed tombstones from its log. If the log's beginning
  were deleted locally now, readers would find in the lake the records that those had deleted.
- Once copying has ended it cannot begin again: compaction has not waited for it.
- The bulk load that a topic begins with never changes. A topic may become diskless, and, unless it is compacted,
  replicated again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.config import DISKLESS_WITHOUT_TABLE, REMOTE_STORAGE_KEPT
from broker.metadata.topic_names import LAKE_DISKLESS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.log.config import LogConfig

REMOTE_STORAGE = "remote.storage.enable"
LOAD = "lake.load"


def with_table_kept(
    before: Mapping[str, str], after: Mapping[str, str], present: LogConfig, wanted: LogConfig
) -> Mapping[str, str]:
    """A topic's own settings after a change of them, and what is kept about its table."""
    for name in (LOAD, LAKE_DISKLESS):
        if name in before and name not in after:
            # A tool that declares topics would remove it, and leaders need it.
            after = {**after, name: before[name]}
    becomes_compacted = wanted.is_compacted and not present.is_compacted
    is_kept = becomes_compacted and present.remote_storage_enable and REMOTE_STORAGE not in after
    if not is_kept and REMOTE_STORAGE_KEPT not in before:
        return after
    return {**after, REMOTE_STORAGE_KEPT: "true"}


def _why_not_diskless(present: LogConfig, wanted: LogConfig) -> str | None:
    """Why a topic cannot become diskless, or remain it: its local logs are caches, and its table is all there is."""
    if not wanted.lake_diskless:
        if present.is_compacted or wanted.is_compacted:
            return f"{LAKE_DISKLESS}=false: a compacted diskless topic remains one"
        # Its partitions are diskless until they have switched.
        return None if wanted.copies_to_lake else DISKLESS_WITHOUT_TABLE
    if not wanted.copies_to_lake:
        return DISKLESS_WITHOUT_TABLE
    if present.lake_diskless:
        if wanted.is_compacted and not present.is_compacted:
            policy = f"cleanup.policy={','.join(wanted.cleanup_policy)}"
            return f"{policy}: a diskless topic only from its creation on"
        return None
    if wanted.lake_load:
        return f"{LAKE_DISKLESS}=true: the topic has begun with a load ({LOAD})"
    if present.is_compacted or wanted.is_compacted:
        return (
            f"{LAKE_DISKLESS}=true: a compacted topic that exists remains replicated, for its compacted log would go, "
            "and its table has what compaction has removed"
        )
    return None


def why_not_from(present: LogConfig, wanted: LogConfig) -> str | None:
    """Why a topic cannot change from these settings to those; None if it can."""
    if wanted.lake_load != present.lake_load:
        return f"{LOAD}: it is given when a topic is created, and stays as it is"
    concerns_diskless = wanted.lake_diskless or present.lake_diskless
    if concerns_diskless and (why := _why_not_diskless(present, wanted)) is not None:
        return why
    if not present.has_table:
        return None
    is_compacted, was_compacted = wanted.is_compacted, present.is_compacted
    policy = f"cleanup.policy={','.join(wanted.cleanup_policy)}"
    if was_compacted and not is_compacted:
        return (
            f"{policy}: a compacted topic that is a Delta table remains compacted, for the lake has what compaction "
            "has deleted from its log. Beside compact it may have delete"
        )
    if was_compacted and wanted.copies_to_lake and not present.copies_to_lake:
        return (
            "remote.log.copy.disable=false: the table of a compacted topic would lack what compaction has removed "
            "since copies ended"
        )
    if wanted.has_table:
        return None
    if is_compacted and not was_compacted:
        return (
            f"{policy}: a topic that is a Delta table, or was, cannot be compacted without it, for what is in the "
            "table may be nowhere else: set remote.storage.enable=true, too"
        )
    disabled = "remote.storage.enable=false"
    if is_compacted:
        return (
            f"{disabled}, which compacted topics have unless they say otherwise: a compacted topic that is a Delta "
            "table remains one. To copy no more: remote.storage.enable=true, remote.log.copy.disable=true"
        )
    return (
        f"{disabled}: what is in the table may be nowhere else. To keep it and copy no more: "
        "remote.storage.enable=true, remote.log.copy.disable=true. To have it deleted: remote.storage.enable=false, "
        "remote.log.delete.on.disable=true, which stay together"
    )
