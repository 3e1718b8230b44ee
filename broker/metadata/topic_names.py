"""Pure: which names a topic may have, in the words of Kafka's own refusals.

Kafka's rules come first. (It also refuses names that differ only in '.' and '_': metrics once could not tell these
apart.) kafka-ds' own comes then: a topic is a folder in the lake, and some file systems take names that differ only in
case for one.
"""

import re
from collections.abc import Mapping

NAME_LENGTH_MAX = 249
GROUP_METADATA_TOPIC_NAME = "__consumer_offsets"
TRANSACTION_STATE_TOPIC_NAME = "__transaction_state"
SHARE_GROUP_STATE_TOPIC_NAME = "__share_group_state"
INTERNAL_TOPICS = frozenset(
    {GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME, SHARE_GROUP_STATE_TOPIC_NAME}
)
COMPACTED_TOPICS = frozenset({GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME})
# These are tables of the lake under other folders, and in Kafka's place a topic that no client creates.
RESERVED_TOPICS = frozenset({"__cluster_metadata", "__remote_log_metadata"})
REMOTE_STORAGE_ENABLE = "remote.storage.enable"
LAKE_DISKLESS = "lake.diskless"
# What a topic does not change while it has diskless partitions.
OF_DISKLESS_TABLES = ("cleanup.policy", REMOTE_STORAGE_ENABLE, "remote.log.copy.disable")
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def in_force(name: str, configs: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of a topic's own that hold.

    Internal topics that were made before this broker could compact do not set cleanup.policy: they are compacted all
    the same, as Kafka's are. They are no tables, whatever they were created with: only coordinators read them.
    """
    if name not in INTERNAL_TOPICS:
        return configs
    policy = {"cleanup.policy": "compact"} if name in COMPACTED_TOPICS else {}
    return {**policy, **configs, REMOTE_STORAGE_ENABLE: "false"}


def why_illegal(name: str) -> str | None:
    """Why no topic may have this name, or None."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL.match(name):
        return (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None


def collision_key(name: str) -> str:
    """Equal for names that may not exist at the same time."""
    return name.replace(".", "_").lower()
