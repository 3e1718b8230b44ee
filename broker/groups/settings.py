"""Pure: the settings of groups out of a broker's.

Rules of this file: names are the same on both sides, so nothing can be forgotten. Whether somebody has set the
replication factor is not a setting, and follows from where it came from.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from broker.groups.values import GroupSettings


def group_settings(config: Any) -> GroupSettings:
    """What a broker's configuration says of groups."""
    given: dict[str, Any] = {
        each.name: getattr(config, each.name, None) for each in fields(GroupSettings)
    }
    given["is_replication_factor_set"] = "offsets.topic.replication.factor" in config.origins
    return GroupSettings(**given)
