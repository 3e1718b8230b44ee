"""Typed tables of what serializers in Java write: Apicurio's, by its own API, into a registry read by Confluent's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from spark_conf import jars
from spark_conf.java import java_command
from spark_conf.pipelines.pipelines import Pipelines
from tests.spark.topics import Topic
from tests.spark.typed_tables import errors_of, keep, values_of

PROGRAM = Path(__file__).parents[1] / "clients" / "java" / "Serialized.java"
STOP = {
    "stop.avsc": {
        "type": "record",
        "name": "Stop",
        "fields": [{"name": "city", "type": "string"}, {"name": "n", "type": "int"}],
    },
    "stop.json": {"type": "object", "properties": {"n": {"type": "number"}}},
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tables_of_each_format_by_serializers_in_java(
    registered: Pipelines, topic: Topic, registry: str, tmp_path: Path
) -> None:
    """Slow because of 63 MB of jars. By default its Protobuf frames have a type's name instead of indexes: an error."""
    topics = {
        name: Topic(topic.broker, f"{topic.name}-{name}").create(
            partitions=1, **{"lake.table.value.format": name}
        )
        for name in ("avro", "json", "protobuf")
    }
    for name, schema in STOP.items():
        (tmp_path / name).write_text(json.dumps(schema))
    classes = os.pathsep.join([f"{jars.fetch('apicurio-serdes')}/*", str(tmp_path)])
    command = [java_command(), *jars.QUICK_JAVA, "-Dfile.encoding=UTF-8", "-cp", classes, PROGRAM]
    url = registry.replace("/ccompat/v7", "/registry/v2")
    words = [topic.broker.bootstrap, url, *(each.name for each in topics.values())]
    subprocess.run([*command, *words], check=True, timeout=300)

    for each in topics.values():
        keep(registered, each)
    assert values_of(topics["avro"]) == [{"city": "Köln", "n": 1}]
    assert values_of(topics["json"]) == [{"city": "Köln", "n": 1.0}]
    messages = [{n: v for n, v in row.items() if v} for row in values_of(topics["protobuf"])]
    assert messages == [
        {},
        {"currency_code": "EUR", "units": 12},
        {"metadata": [("stand", "7")]},
        {"subject": "flights"},
        {"low": {"latitude": 50.5, "longitude": 0.0}},
    ]
    assert errors_of(topics["avro"]) == errors_of(topics["json"]) == []
    ((offset, reason),) = errors_of(topics["protobuf"])
    assert offset == 0
    assert reason.endswith("cannot be read: it has no message with this index")
