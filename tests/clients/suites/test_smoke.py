"""A few tests of the suites that come by package registries; `make suites` runs all."""

import shutil

import pytest

from tests.clients.suites.__main__ import main

FEW = {
    "kafka-python": ("test_consumer_integration.py::test_kafka_consumer",),
    "trogdor": ("RoundTripWorkload", "ProduceBench@transactions"),
    "spark-kafka": ("KafkaRealTimeModeE2ESuite",),
    "kafka-streams": ("streams.integration.JoinStoreIntegrationTest",),
    "sarama": ("TestFuncProducing", "TestFuncAdminListConsumerGroupOffsets"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", FEW)
def test_a_few_tests_pass(suite: str) -> None:
    if suite == "sarama" and shutil.which("go") is None:
        pytest.skip("Go is not installed")
    assert main([suite, *FEW[suite]]) == 0
