"""Shell: the settings of topics, brokers and groups: read, validated, changed.

JudgeSettings is an API between brokers, and is here because the validation is.
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
