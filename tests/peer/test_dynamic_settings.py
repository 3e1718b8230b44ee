"""The settings that change at run time, as Apache Kafka's own classes name them."""

from tests.peer.jvm import Jvm
from tests.unit.config.kafkas_dynamic import KAFKAS


def test_kafkas_dynamic_settings_are_those_that_are_looked_at(jvm: Jvm) -> None:
    kafkas = jvm.classes.org.apache.kafka.server.config.DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS
    assert sorted(kafkas) == KAFKAS
