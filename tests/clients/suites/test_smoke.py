"""A few tests of each suite that package registries have; `make suites` runs all.

Not of librdkafka's, confluent-kafka-python's and Karapace's, which come from their repositories.
"""

import shutil

import pytest

from tests.clients.suites.__main__ import main

QUICK = {
    "franz-go": ("TestPing",),
    "kafka": ("clients.admin.ConcurrentListOffsetsRequestTest",),
    "kafka-go": ("TestClientMetadata",),
    "kafka-python": ("test_consumer_integration.py::test_kafka_consumer",),
    "kafka-requests": ("kafka.server.HeartbeatRequestTest",),
    "kafka-streams": ("streams.integration.JoinStoreIntegrationTest",),
    "sarama": ("TestFuncAdminListConsumerGroupOffsets",),
    "spark-kafka": ("ConsumerStrategySuite",),
    "trogdor": ("RoundTripWorkload",),
}
SLOW = {
    "franz-go": ("TestGroupSimple",),
    "kafka-go": ("sasl/TestSASL",),
    # To compile it takes two minutes of CPU.
    "rskafka": ("client/test_sasl", "producer/test_batch_producer"),
    "sarama": ("TestFuncProducing",),
    "spark-kafka": ("KafkaRealTimeModeE2ESuite",),
    "trogdor": ("ProduceBench@transactions",),
    "trogdor-faults": ("RoundTripWorkload+stop",),
}
# What compiles the tests, where a suite needs more than the project does.
COMPILERS = {"franz-go": "go", "kafka-go": "go", "sarama": "go", "rskafka": "cargo"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", QUICK)
def test_a_few_tests_pass(suite: str) -> None:
    passes(suite, QUICK[suite])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", SLOW)
def test_a_few_slower_tests_pass(suite: str) -> None:
    passes(suite, SLOW[suite])


def passes(suite: str, tests: tuple[str, ...]) -> None:
    compiler = COMPILERS.get(suite)
    if compiler and shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    assert main([suite, *tests]) == 0
