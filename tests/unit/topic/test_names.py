"""Paths, application ids, and intervals in a table's properties."""

import pytest

from kafka_ds.delta.actions import DAY_MS, interval_ms
from kafka_ds.delta.names import (
    CheckpointName,
    checkpoint_of,
    commit_file,
    encode_path,
    resolve_path,
    version_of_commit,
)
from kafka_ds.protocol.types import uuid_text
from kafka_ds.topic.names import (
    AppIdKind,
    app_id,
    data_file,
    is_data_file,
    is_light_file,
    parse_app_id,
    residue_file,
    start_of_residue,
    topic_table,
)

DASHED = b"\xfb\xef\xbe" * 5 + b"\xff"  # In base64 it is dashes all over.


def test_paths():
    assert topic_table("orders.eu") == "topics/orders.eu"
    assert data_file(3, 42, "abc") == "partition=3/00000000000000000042-abc.parquet"
    assert (
        data_file(3, 42, "abc", is_light=True)
        == "partition=3/00000000000000000042-light-abc.parquet"
    )
    assert residue_file(3, 42, "abc") == "_residue/partition=3/00000000000000000042-abc.residue"
    assert commit_file(7) == "_delta_log/00000000000000000007.json"


def test_a_residue_file_says_where_it_begins_and_others_do_not():
    assert start_of_residue("topics/t/" + residue_file(3, 42, "abc")) == 42
    for other in ("notes.txt", "", "²" * 20):
        assert start_of_residue(f"topics/t/_residue/partition=3/{other}") is None


def test_a_file_that_was_compressed_in_haste_says_so():
    """Also where an id looks as if it did."""
    for attempt in (uuid_text(bytes(range(16))), uuid_text(DASHED), "light-" + 16 * "-"):
        name = f"topics/t/{data_file(3, 42, attempt)}"
        light = f"topics/t/{data_file(3, 42, attempt, is_light=True)}"
        assert is_data_file(name) and is_data_file(light)
        assert (is_light_file(name), is_light_file(light)) == (False, True)
        assert light.endswith(f"-{attempt}.parquet"), "found by its attempt"
    assert not is_light_file("partition=3/00000000000000000042-light-abc.parquet"), "not ours"


def test_names_in_a_log():
    assert version_of_commit("00000000000000000007.json") == 7
    for other in ("7.json", "00000000000000000007.json.tmp", "00000000000000000007.crc"):
        assert version_of_commit(other) is None
    assert checkpoint_of("00000000000000000007.checkpoint.parquet") == CheckpointName(version=7)
    assert checkpoint_of(
        "00000000000000000007.checkpoint.0000000002.0000000003.parquet"
    ) == CheckpointName(version=7, part=2, parts=3)
    assert checkpoint_of("00000000000000000007.json") is None


@pytest.mark.parametrize("kind", list(AppIdKind))
@pytest.mark.parametrize("topic_id", [bytes(range(16)), DASHED])
def test_application_ids_are_read_back(kind, topic_id):
    found = parse_app_id(app_id(topic_id, 12, kind))
    assert (found.topic_id, found.partition, found.kind) == (topic_id, 12, kind)


@pytest.mark.parametrize("text", ["", "spark-1", "A" * 22, "A" * 22 + "-x", "A" * 21 + "B-1"])
def test_other_applications_ids_are_none_of_ours(text):
    assert parse_app_id(text) is None


@pytest.mark.parametrize(
    ("spelled", "path"),
    [
        ("partition=0/a.parquet", "topics/t/partition=0/a.parquet"),
        ("partition=0/a%20b%25.parquet", "topics/t/partition=0/a b%.parquet"),
        ("/data/a.parquet", "/data/a.parquet"),
        ("file:///data/a%20b.parquet", "/data/a b.parquet"),
        ("file:/data/a.parquet", "/data/a.parquet"),
        ("s3://bucket/a.parquet", "s3://bucket/a.parquet"),
        ("a:b.parquet", "topics/t/a:b.parquet"),
    ],
)
def test_paths_of_actions(spelled, path):
    assert resolve_path("topics/t", spelled) == path


def test_paths_are_encoded_as_they_are_resolved():
    name = "partition=0/ä b%c#d?.parquet"
    assert resolve_path("t", encode_path(name)) == f"t/{name}"
    assert encode_path(data_file(0, 1, "a-_b")) == data_file(0, 1, "a-_b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval 7 days", 7 * DAY_MS),
        ("interval 1 week", 7 * DAY_MS),
        ("interval 1 day 12 hours", DAY_MS * 3 // 2),
        ("30 minutes", 1_800_000),
        ("interval 1 month", None),
        ("interval", None),
        ("soon", None),
        ("interval ² days", None),
    ],
)
def test_intervals_are_read(text, expected):
    assert interval_ms(text) == expected
