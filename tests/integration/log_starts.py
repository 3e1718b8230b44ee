"""What several tests use: earliest, delete_records, error_at."""

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ds.protocol.messages import ListOffsetsRequest
from kafka_ds.protocol.messages.offsets import ListOffsetsTopic
from tests.in_process import fetch_request
from tests.integration.raw_client import RawClient
from tests.requests import build

TOPIC = "begun-later"


def earliest(bootstrap: str) -> int:
    """Where the broker says that the partition begins; -1 while it does not say."""
    topics = [build(ListOffsetsTopic, name=TOPIC, partition_index=0, timestamp=-2)]
    with RawClient(bootstrap) as client:
        answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        offset: int = answer.topics[0].partitions[0].offset
        return offset


def delete_records(bootstrap: str, offset: int) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(TOPIC, 0, offset)
    deleted: int = admin.delete_records([place])[place].result(120).low_watermark
    return deleted


def error_at(bootstrap: str, offset: int) -> int:
    with RawClient(bootstrap) as client:
        answer = client.ask(fetch_request(TOPIC, offset, max_wait_ms=100), 12)
        code: int = answer.responses[0].partitions[0].error_code
        return code
