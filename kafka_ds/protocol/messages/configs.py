"""Pure: the messages that read and change settings of brokers and topics.

A setting's value travels as text, whatever its type.
"""

from kafka_ds.protocol.types import (
    boolean,
    i8,
    i16,
    i32,
    message,
    string,
    struct,
    v,
)

# The types of resources.
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32


@struct
class DescribeConfigsResource:
    resource_type: i8
    resource_name: string
    configuration_keys: list[string] | None = v(nullable="0+")


@message(key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """Request the settings of resources, with their sources."""

    resources: list[DescribeConfigsResource]
    include_synonyms: boolean = v(default=False)
    include_documentation: boolean = v("3+", default=False)


@struct
class DescribeConfigsSynonym:
    name: string
    value: string | None = v(nullable="0+")
    source: i8


@struct
class DescribeConfigsResourceResult:
    name: string
    value: string | None = v(nullable="0+")
    read_only: boolean
    config_source: i8 = v(default=-1)
    is_sensitive: boolean
    synonyms: list[DescribeConfigsSynonym]
    config_type: i8 = v("3+", default=0)
    documentation: string | None = v("3+", nullable="0+", default="")


@struct
class DescribeConfigsResult:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    resource_type: i8
    resource_name: string
    configs: list[DescribeConfigsResourceResult]


@message(key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """The settings with value, source and synonyms."""

    throttle_time_ms: i32 = v(default=0)
    results: list[DescribeConfigsResult] = v(of="resources")


@struct
class AlterableConfig:
    name: string
    value: string | None = v(nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: i8
    resource_name: string
    configs: list[AlterableConfig]


@message(key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    """Replace all settings of these resources."""

    resources: list[AlterConfigsResource]
    validate_only: boolean


@struct
class AlterConfigsResourceResponse:
    error_code: i16 = v(default=0)
    error_message: string | None = v(nullable="0+", default=None)
    resource_type: i8
    resource_name: string


@message(key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    """The result for each resource."""

    throttle_time_ms: i32 = v(default=0)
    responses: list[AlterConfigsResourceResponse] = v(of="resources")


@struct
class IncrementalAlterableConfig:
    name: string
    config_operation: i8
    value: string | None = v(nullable="0+")


@struct
class IncrementalAlterConfigsResource:
    resource_type: i8
    resource_name: string
    configs: list[IncrementalAlterableConfig]


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """Set, delete, append to or subtract from single settings of these resources."""

    resources: list[IncrementalAlterConfigsResource]
    validate_only: boolean


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """The result for each resource."""

    throttle_time_ms: i32 = v(default=0)
    responses: list[AlterConfigsResourceResponse] = v(of="resources")


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """List the resources of these types; version 0 is ListClientMetricsResources."""

    resource_types: list[i8] = v("1+", default=[])


@struct
class ConfigResource:
    resource_name: string
    resource_type: i8 = v("1+", default=16)


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """The names of the resources."""

    throttle_time_ms: i32 = v(default=0)
    error_code: i16 = v(default=0)
    config_resources: list[ConfigResource]
