"""Which table features stop our writer, and which are listed without asking for anything."""

import json

import pytest

from kafka_ds.delta.actions import metadata_action, protocol_action
from kafka_ds.delta.features import KNOWN_FEATURES
from kafka_ds.delta.schema import delta_schema_json
from kafka_ds.topic.commit_rules import objection
from kafka_ds.topic.schemas import TOPIC_PARTITION_COLUMNS, TOPIC_SCHEMA

PROTOCOL = protocol_action()["protocol"]
READER_FEATURES = (
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
)


def metadata(*columns, **configuration):
    """A topic's table with further columns."""
    schema = json.loads(delta_schema_json(TOPIC_SCHEMA))
    schema["fields"] += columns
    return metadata_action(
        table_id="t",
        schema_json=json.dumps(schema),
        partition_columns=TOPIC_PARTITION_COLUMNS,
        configuration=configuration,
        created_ms=0,
    )["metaData"]


def column(name="note", kind="string", **said):
    return {"name": name, "type": kind, "nullable": True, "metadata": said}


def listing(*features):
    """A protocol that lists these."""
    found = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(features)}
    if reader := [each for each in features if each in READER_FEATURES]:
        found |= {"minReaderVersion": 3, "readerFeatures": reader}
    return found


@pytest.mark.parametrize(
    "protocol",
    [
        *({"minReaderVersion": 1, "minWriterVersion": each} for each in range(2, 7)),
        {"minReaderVersion": 2, "minWriterVersion": 5},
        listing(),
        *(listing(each) for each in sorted(KNOWN_FEATURES)),
        listing(*sorted(KNOWN_FEATURES)),
    ],
)
def test_what_is_listed_and_not_active_asks_nothing(protocol):
    assert objection(protocol, metadata()) is None
    taken_back = {
        "delta.appendOnly": "false",
        "delta.enableChangeDataFeed": "false",
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "none",
        "delta.checkpointPolicy": "classic",
    }
    assert objection(protocol, metadata(column(comment="?"), **taken_back)) is None


@pytest.mark.parametrize(
    ("protocol", "why"),
    [
        ({"minReaderVersion": 4, "minWriterVersion": 7}, "reader version 4 and writer version 7"),
        ({"minReaderVersion": 1, "minWriterVersion": 8}, "reader version 1 and writer version 8"),
        ({"minReaderVersion": 3, "minWriterVersion": 2}, "reader version 3 with writer version 2"),
        (
            listing("appendOnly", "catalogManaged"),
            "table feature catalogManaged: ALTER TABLE … DROP",
        ),
        (listing("rowTracking", "invariants"), "ALTER TABLE … DROP FEATURE rowTracking"),
        (
            {**listing("deletionVectors"), "readerFeatures": ["deletionVectors", "new"]},
            "table feature new",
        ),
    ],
)
def test_what_asks_something_as_soon_as_it_is_listed(protocol, why):
    found = objection(protocol, metadata())
    assert why in found
    assert "appendOnly" not in found and "invariants" not in found, "only what stops"


def test_row_tracking_that_is_suspended_asks_nothing():
    suspended = metadata(**{"delta.rowTrackingSuspended": "true"})
    assert objection(listing("rowTracking", "domainMetadata"), suspended) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.appendOnly", "true"),
        ("delta.enableChangeDataFeed", "True"),
        ("delta.enableInCommitTimestamps", "true"),
        ("delta.enableRowTracking", "true"),
        ("delta.enableIcebergCompatV2", "true"),
        ("delta.columnMapping.mode", "name"),
        ("delta.checkpointPolicy", "v2"),
        ("delta.setTransactionRetentionDuration", "interval 7 days"),
        ("delta.logRetentionDuration", "interval 6 days"),
        ("delta.deletedFileRetentionDuration", "interval 0 hours"),
    ],
)
def test_a_property_that_stops_is_named_with_the_way_back(name, value):
    found = objection(PROTOCOL, metadata(**{name: value}))
    assert found.startswith(name)
    assert found.endswith(f"ALTER TABLE … UNSET TBLPROPERTIES ('{name}')")


def test_a_constraint_is_named():
    found = objection(listing("checkConstraints"), metadata(**{"delta.constraints.small": "x < 1"}))
    assert found == "CHECK constraint small: ALTER TABLE … DROP CONSTRAINT small"


@pytest.mark.parametrize(
    ("added", "why"),
    [
        (column(**{"delta.invariants": "{}"}), "column note has an invariant"),
        (column(**{"delta.generationExpression": "offset + 1"}), "column note is generated"),
        (column(kind="long", **{"delta.identity.start": 1}), "column note is an identity column"),
        (column(kind="long", **{"delta.typeChanges": []}), "column note was given a wider type"),
        (column(kind="variant"), "column note is a variant"),
        (column(CURRENT_DEFAULT="'x'"), "ALTER TABLE … ALTER COLUMN note DROP DEFAULT"),
        (
            column(
                kind={
                    "type": "array",
                    "containsNull": True,
                    "elementType": {
                        "type": "struct",
                        "fields": [column("inner", **{"delta.invariants": "{}"})],
                    },
                }
            ),
            "column note.inner has an invariant",
        ),
    ],
)
def test_a_column_that_stops_is_named(added, why):
    assert why in objection(PROTOCOL, metadata(added))


def test_a_default_of_a_column_that_each_row_has_is_never_used():
    found = metadata()
    schema = json.loads(found["schemaString"])
    value = next(each for each in schema["fields"] if each["name"] == "value")
    value["metadata"] = {"CURRENT_DEFAULT": "X'00'"}
    assert (
        objection(listing("allowColumnDefaults"), {**found, "schemaString": json.dumps(schema)})
        is None
    )
