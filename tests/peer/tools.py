"""Apache Kafka's own tools against a broker of ours, and how to see from another side what they did."""

from __future__ import annotations

from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import DescribeConfigsRequest, ListOffsetsRequest, MetadataRequest
from kafka_ds.protocol.messages.cluster import MetadataRequestTopic, MetadataResponseTopic
from kafka_ds.protocol.messages.configs import DescribeConfigsResource
from kafka_ds.protocol.messages.offsets import ListOffsetsPartition, ListOffsetsTopic
from tests.in_process import batch_of, produce_request
from tests.integration.raw_client import RawClient
from tests.peer.jvm import TOOLS, Jvm
from tests.processes import BrokerProcess

TOPIC, BROKER = 2, 4


class Tools:
    """A broker, a connection to it, and the tools' command lines."""

    def __init__(self, broker: BrokerProcess, client: RawClient, jvm: Jvm) -> None:
        self.broker = broker
        self.client = client
        self.jvm = jvm

    def run(self, name: str, *words: str) -> str:
        """The output of a tool of Kafka's tools package, or of one whose name has dots."""
        name = name if "." in name else f"{TOOLS}.{name}"
        return self.jvm.run(name, *words, "--bootstrap-server", self.broker.bootstrap)

    def create(self, topic: str, partitions: int = 1, *, may_exist: bool = False) -> None:
        """Makes a topic, by the tool for it."""
        words = ["--create", "--topic", topic, "--partitions", str(partitions)]
        self.run("TopicCommand", *words, *(["--if-not-exists"] if may_exist else []))

    def topic(self, name: str) -> MetadataResponseTopic:
        """What the broker says of a topic, without making it."""
        wanted = [MetadataRequestTopic(name=name)]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        found: MetadataResponseTopic = self.client.ask(request, 12).topics[0]
        return found

    def settings(self, kind: int, name: str) -> dict[str, tuple[str | None, int]]:
        """Value and source of each setting."""
        wanted = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        response = self.client.ask(DescribeConfigsRequest(resources=[wanted]), 4)
        return {each.name: (each.value, each.config_source) for each in response.results[0].configs}

    def offset(self, topic: str, partition: int, timestamp: int) -> int:
        """Where a partition begins or ends."""
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
        response = self.client.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        found: int = response.topics[0].partitions[0].offset
        return found

    def produce(self, topic: str, count: int, partition: int = 0) -> None:
        batch = batch_of([b"%d" % number for number in range(count)])
        response = self.client.ask(produce_request(topic, batch, partition), 9)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
