"""Shell: the settings of topics, brokers and groups: read, judged, changed.

Rules of this file: JudgeSettings is here, though brokers ask it, beside the judging that it is about.
"""

from broker.handlers.configs import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    judge_settings,
    list_config_resources,
)

__all__ = [
    "alter_configs",
    "describe_configs",
    "incremental_alter_configs",
    "judge_settings",
    "list_config_resources",
]
