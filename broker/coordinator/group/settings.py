"""Pure: the settings of groups from a broker's settings.

Rules of this file: names are the same on both sides, so none can be forgotten. Whether the replication factor was set
by the user is no setting itself; it follows from where its value came from.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from broker.coordinator.group.values import GroupSettings


def group_settings(config: Any) -> GroupSettings:
    """What a broker's configuration says of groups."""
    given: dict[str, Any] = {
        each.name: getattr(config, each.name, None) for each in fields(GroupSettings)
    }
    given["is_replication_factor_set"] = "offsets.topic.replication.factor" in config.origins
    return GroupSettings(**given)
