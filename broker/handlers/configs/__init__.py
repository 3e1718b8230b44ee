"""Shell: the settings of topics, brokers and groups: read, validated, changed.

ValidateSettings is an API between brokers, and is here because the validation is.
"""

from broker.handlers.configs import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
    validate_settings,
)

__all__ = [
    "alter_configs",
    "describe_configs",
    "incremental_alter_configs",
    "validate_settings",
    "list_config_resources",
]
