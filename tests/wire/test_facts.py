"""Our declarations say what Apache Kafka's own message definitions say, field by field and version by version.

The definitions are read from the kafka-clients jar at hand when the test runs.
"""

import zipfile
from pathlib import Path

import pytest

import broker.handlers  # noqa: F401 - registers what is served
from broker.protocol_doc import NOT_SERVED
from broker.registry import REGISTRY, Served
from kafka_ds.protocol.messages import OWN_KEYS_FROM, REQUESTS
from kafka_ds.protocol.plan import plan
from kafka_ds.protocol.types import message_info
from tests.wire.definitions import (
    NULL_INSTEAD,
    assert_declared,
    definition,
    is_own,
    kafka_default,
    kafka_range,
    snake,
)
from tests.wire.random_messages import MESSAGES

pytestmark = pytest.mark.jars


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_a_message_is_declared_as_kafka_defines_it(cls: type, kafka_clients_jar: Path) -> None:
    theirs = definition(kafka_clients_jar, cls.__name__)
    assert message_info(cls).key == theirs["apiKey"]
    assert_declared(cls, theirs)


def test_each_key_of_kafka_is_served_or_the_page_says_why_not(kafka_clients_jar: Path) -> None:
    found = {}
    with zipfile.ZipFile(kafka_clients_jar) as archive:
        names = [Path(each).stem for each in archive.namelist() if each.endswith("Request.json")]
    for name in names:
        theirs = definition(kafka_clients_jar, name)
        if theirs["validVersions"] != "none":  # Those of ZooKeeper's time.
            found[theirs["apiKey"]] = (name.removesuffix("Request"), theirs["validVersions"])
    served = {each.api_key for each in REGISTRY if each.api_key < OWN_KEYS_FROM}
    unserved = {key: found[key] for key in found.keys() - served}
    listed = {
        key: (name, versions.replace("–", "-")) for key, (name, versions, _) in NOT_SERVED.items()
    }
    assert served <= found.keys()
    assert listed == unserved


@pytest.mark.parametrize(
    "served",
    [each for each in REGISTRY if each.api_key < OWN_KEYS_FROM],
    ids=lambda each: each.name,
)
def test_each_version_of_a_key_is_served_and_advertised(
    served: Served, kafka_clients_jar: Path
) -> None:
    theirs = definition(kafka_clients_jar, f"{served.name}Request")
    versions = kafka_range(theirs["validVersions"])
    assert served.api_key == theirs["apiKey"]
    assert (served.lowest, served.highest) == (versions.first, versions.last)
    # Old librdkafka takes the range as a sign of what compression it may use; Kafka says the same.
    first = 0 if served.name == "Produce" else versions.first
    assert served.advertised == (first, versions.last)
    assert served.unstable is theirs.get("latestVersionUnstable", False)


def test_every_field_is_absent_somewhere_only_with_kafkas_default(kafka_clients_jar: Path) -> None:
    for cls in MESSAGES:
        theirs = definition(kafka_clients_jar, cls.__name__)
        info = message_info(cls)
        for version in range(info.versions.first, info.versions.last + 1):
            by_name = {snake(f["name"]): f for f in theirs["fields"]}
            for field in plan(cls, version).absent:
                if field.name not in NULL_INSTEAD and not is_own(field):
                    is_struct = "fields" in by_name[field.name]
                    assert field.default == kafka_default(by_name[field.name], is_struct)


def test_requests_have_the_client_id_outside_of_flexible_versions(kafka_clients_jar: Path) -> None:
    """What `frame` has by hand: the header's one field that is never compact."""
    header = definition(kafka_clients_jar, "RequestHeader")
    names = [(f["name"], f["type"]) for f in header["fields"]]
    assert names == [
        ("RequestApiKey", "int16"),
        ("RequestApiVersion", "int16"),
        ("CorrelationId", "int32"),
        ("ClientId", "string"),
    ]
    assert header["fields"][-1]["flexibleVersions"] == "none"
    kafkas = {key for key in REQUESTS if key < OWN_KEYS_FROM}
    assert kafkas == {message_info(cls).key for cls in MESSAGES}
