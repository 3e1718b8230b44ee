"""Pure: the settings of groups out of a broker's.

Rules of this file: names are the same on both sides, so nothing can be forgotten.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from broker.groups.values import GroupSettings


def group_settings(config: Any) -> GroupSettings:
    """What a broker's configuration says of groups."""
    names = [each.name for each in fields(GroupSettings)]
    return GroupSettings(**{name: getattr(config, name) for name in names})
