"""Pure: what the driver of a bulk load tells its tasks: the topic that is to be, and which rows it could not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LoadPlan", "limits"]

# Spark's times end in the year 9999.
NEVER_MS = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What the driver knows of the topic that the load creates."""

    load: str
    """The id that the topic's setting `lake.load` will have."""
    topic: str
    lake: str
    partition_count: int
    is_compacted: bool
    uses_log_append_time: bool
    max_message_bytes: int
    oldest_ms: int
    """Records that are older would be deleted at once, or refused."""
    newest_ms: int
    oldest_by: str
    """The setting that `oldest_ms` follows from, with its value."""
    retention_bytes: int
    """The size of a partition from which on its oldest records are deleted; -1: no limit."""
    keys_decide: bool
    batch_bytes: int
    """Rows without keys go to one partition until it has so many bytes more, then to the next."""


def limits(settings: Mapping[str, str | None], now_ms: int) -> dict[str, Any]:
    """The fields of a LoadPlan that follow from the topic's settings: what the broker would refuse or delete."""

    def number(name: str) -> int:
        return int(settings.get(name) or -1)

    policy = settings.get("cleanup.policy") or ""
    kept_ms, before_ms = number("retention.ms"), number("message.timestamp.before.max.ms")
    oldest, oldest_by = 0, "retention.ms"
    if "delete" in policy and kept_ms >= 0:
        oldest, oldest_by = now_ms - kept_ms, f"retention.ms={kept_ms}"
    if before_ms >= 0 and now_ms - before_ms > oldest:
        oldest, oldest_by = now_ms - before_ms, f"message.timestamp.before.max.ms={before_ms}"
    return {
        "is_compacted": "compact" in policy,
        "uses_log_append_time": settings.get("message.timestamp.type") == "LogAppendTime",
        "max_message_bytes": number("max.message.bytes"),
        "oldest_ms": oldest,
        "oldest_by": oldest_by,
        "retention_bytes": number("retention.bytes") if "delete" in policy else -1,
        "newest_ms": min(now_ms + number("message.timestamp.after.max.ms"), NEVER_MS),
    }
