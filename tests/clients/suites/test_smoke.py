"""A few tests of the suites: in CI what takes seconds there, the others among the slow tests; `make suites` runs all.

Not of librdkafka's, confluent-kafka-python's and Karapace's, whose sources no package registry has.
"""

import shutil

import pytest

from tests.clients.suites.__main__ import main

QUICK = {
    "kafka": ("clients.admin.ConcurrentListOffsetsRequestTest",),
    "kafka-python": ("test_consumer_integration.py::test_kafka_consumer",),
    "kafka-requests": ("kafka.server.HeartbeatRequestTest",),
    "kafka-streams": ("streams.integration.JoinStoreIntegrationTest",),
    "trogdor": ("RoundTripWorkload",),
}
# More than 20 s of CPU each, with what is compiled first (Scala, Go, Rust) or started (Spark).
SLOW = {
    "franz-go": ("TestPing", "TestGroupSimple"),
    "kafka-go": ("TestClientMetadata", "sasl/TestSASL"),
    "rskafka": ("client/test_sasl", "producer/test_batch_producer"),
    "sarama": ("TestFuncProducing", "TestFuncAdminListConsumerGroupOffsets"),
    "spark-kafka": ("KafkaRealTimeModeE2ESuite",),
    "trogdor-faults": ("RoundTripWorkload+stop",),
}
# What compiles the tests, where a suite needs more than the project does.
COMPILERS = {"franz-go": "go", "kafka-go": "go", "sarama": "go", "rskafka": "cargo"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", QUICK)
def test_a_few_tests_pass(suite: str) -> None:
    assert main([suite, *QUICK[suite]]) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", SLOW)
def test_a_few_tests_of_slower_suites_pass(suite: str) -> None:
    compiler = COMPILERS.get(suite)
    if compiler and shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    assert main([suite, *SLOW[suite]]) == 0
