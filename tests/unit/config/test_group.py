"""What a group sets itself, and what it has from the broker."""

import pytest

from broker.config.broker import BrokerConfig
from broker.config.describe import describe_group
from broker.config.group import check_group_config, group_value, reset_duration_ms
from kafka_ds.process.settings import ConfigError

CONFIG = BrokerConfig(
    group_share_record_lock_duration_ms=20_000,
    group_consumer_assignment_interval_ms=900,
    group_consumer_max_assignment_interval_ms=700,
)
LOCK = "share.record.lock.duration.ms"


@pytest.mark.parametrize(
    ("own", "name", "value"),
    [
        ({}, LOCK, 20_000),
        ({LOCK: "40000"}, LOCK, 40_000),
        ({LOCK: "600000"}, LOCK, 60_000),  # Set while the broker's bound was another.
        ({}, "consumer.assignment.interval.ms", 700),  # Above its bound.
        ({}, "share.auto.offset.reset", "latest"),
        ({"share.auto.offset.reset": "earliest"}, "share.auto.offset.reset", "earliest"),
        ({}, "share.renew.acknowledge.enable", True),
        ({"share.renew.acknowledge.enable": "false"}, "share.renew.acknowledge.enable", False),
        ({"streams.num.standby.replicas": "7"}, "streams.num.standby.replicas", 2),
        ({"streams.initial.rebalance.delay.ms": "0"}, "streams.initial.rebalance.delay.ms", 0),
        ({}, "streams.initial.rebalance.delay.ms", 3_000),
    ],
)
def test_a_group_has_its_own_value_or_the_brokers(
    own: dict[str, str], name: str, value: object
) -> None:
    assert group_value(CONFIG, own, name) == value


@pytest.mark.parametrize(
    ("strategy", "duration_ms"),
    [
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:P1DT2H3M4.5S", 93_784_500),
        ("by_duration:pt0.0019s", 1),
        ("by_duration:P2D", 172_800_000),
        ("latest", None),
    ],
)
def test_a_duration_is_read_as_java_reads_it(strategy: str, duration_ms: int | None) -> None:
    check_group_config(CONFIG, {"share.auto.offset.reset": strategy})
    assert reset_duration_ms(strategy) == duration_ms


@pytest.mark.parametrize(
    "text", ["", "1h", "P", "PT", "PT-1H", "-PT1H", "P1H", "P1DT", "PT1.S", "PT1.5M"]
)
def test_another_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no ISO 8601 duration"):
        check_group_config(CONFIG, {"share.auto.offset.reset": f"by_duration:{text}"})


def test_a_session_is_longer_than_an_interval() -> None:
    config = BrokerConfig(
        group_share_min_session_timeout_ms=1_000, group_share_min_heartbeat_interval_ms=1_000
    )
    own = {"share.session.timeout.ms": "5000", "share.heartbeat.interval.ms": "5000"}
    with pytest.raises(ConfigError, match="must be greater than share.heartbeat"):
        check_group_config(config, own)


def test_what_only_a_group_sets_has_no_name_of_the_broker() -> None:
    described = {each.name: each for each in describe_group(CONFIG, {LOCK: "30000"})}
    (reset,) = described["share.auto.offset.reset"].synonyms
    assert (reset.name, reset.value) == ("share.auto.offset.reset", "latest")
    assert [each.name for each in described[LOCK].synonyms] == [LOCK, f"group.{LOCK}"]


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [
        ("consumer.assignor.offload.enable", "true", "false"),
        ("streams.num.warmup.replicas", "2", "3"),
        ("streams.rack.aware.assignment.tags", "", "zone"),
        ("streams.assignor.name", "", "sticky"),
    ],
)
def test_what_groups_have_in_kafka_alone_may_stand_at_its_default(
    name: str, default: str, other: str
) -> None:
    check_group_config(CONFIG, {name: default})
    with pytest.raises(ConfigError, match=f"{name}={other} is not supported by this broker"):
        check_group_config(CONFIG, {name: other})


def test_a_name_that_no_kafka_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Unknown group config name: streams\.none"):
        check_group_config(CONFIG, {"streams.none": "1"})
