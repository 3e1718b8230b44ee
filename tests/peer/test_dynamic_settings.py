"""The settings that change at run time, and those of groups, as Apache Kafka's own classes name them."""

from broker.config.group import group_settings
from broker.config.unserved import unserved_group_settings
from tests.peer.jvm import Jvm
from tests.unit.config.kafkas_dynamic import KAFKAS


def test_kafkas_dynamic_settings_are_those_that_are_looked_at(jvm: Jvm) -> None:
    kafkas = jvm.classes.org.apache.kafka.server.config.DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS
    assert sorted(kafkas) == KAFKAS


def test_kafkas_settings_of_groups_are_served_or_refused_by_name(jvm: Jvm) -> None:
    kafkas = jvm.classes.org.apache.kafka.coordinator.group.GroupConfig.configNames()
    assert {*kafkas} == {*group_settings(), *unserved_group_settings()}
