"""Pure: holding replication back to a rate, so that moving replicas leaves room for clients (KIP-73).

Topics name what is throttled: `leader.replication.throttled.replicas` and `follower.…` list partition:broker, or `*`. A
replica that is in sync is never throttled: it would fall out of sync for it. The rate (`broker/rates.py`) is that
of throttled partitions alone.
"""

from __future__ import annotations

ALL_REPLICAS = "*"


def is_listed(listed: str | None, partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas names this one."""
    if not listed:
        return False
    if listed.strip() == ALL_REPLICAS:
        return True
    wanted = f"{partition}:{broker_id}"
    return any(entry.strip() == wanted for entry in listed.split(","))
