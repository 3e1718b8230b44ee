"""The options: defaults as in Spark's Kafka source, errors that name the option."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from kafka_ds.client.settings import ClientSettings
from kafka_ds.errors import OptionError
from kafka_ds.source.datasource import KafkaDataSource
from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.options.limits import AtEarliestOrLatest, AtOffsets, AtTimestamp, AtTimestamps
from kafka_ds.source.options.options import OPTIONS, parse_options

LEAST = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "t"}


def test_the_data_source_documents_every_option() -> None:
    document = inspect.getdoc(KafkaDataSource) or ""
    assert [name for name in OPTIONS if f"``{name}``" not in document] == []


def test_the_defaults_are_those_of_sparks_source() -> None:
    batch = parse_options(LEAST, stream=False)
    stream = parse_options(LEAST, stream=True)
    assert batch.starting == AtEarliestOrLatest(option="startingOffsets", offset=-2)
    assert batch.ending == AtEarliestOrLatest(option="endingOffsets", offset=-1)
    assert stream.starting == AtEarliestOrLatest(option="startingOffsets", offset=-1)
    for options in (batch, stream):
        assert options.fail_on_data_loss
        assert not options.include_headers
        assert options.no_match == "error"
        assert options.poll_timeout_ms == 120_000
        assert (options.fetch_offset_retries, options.fetch_offset_retry_interval_ms) == (3, 1_000)
        assert options.max_trigger_delay_ms == 15 * 60_000
        assert options.min_partitions is None
        assert (options.max_offsets_per_trigger, options.max_bytes_per_trigger) == (None, None)
        assert (options.tiers, options.lake, options.columns) == ("both", None, None)
        assert options.where == Predicate()
        assert options.client == ClientSettings(bootstrap_servers=(("broker", 9092),))
        assert options.client.read_committed


EACH = {
    "KAFKA.bootstrap.servers": "a:1, [::1]:2",
    "kafka.client.id": "me",
    "kafka.isolation.level": "read_uncommitted",
    "kafka.fetch.max.wait.ms": "7",
    "kafka.max.partition.fetch.bytes": "1048576",
    "kafka.request.timeout.ms": "1000",
    "kafka.group.id": "g",
    "kafka.session.timeout.ms": "6000",
    "kafka.check.crcs": "false",
    "kafka.reconnect.backoff.ms": "5",
    "kafka.reconnect.backoff.max.ms": "500",
    "kafka.security.protocol": "plaintext",
    "assign": '{"a":[0,2],"b":[1]}',
    "StartingOffsets": '{"a":{"0":5,"2":-2},"b":{"1":-2}}',
    "endingTimestamp": "1700000000000",
    "startingOffsetsByTimestampStrategy": "LATEST",
    "failOnDataLoss": "false",
    "minPartitions": "8",
    "maxRecordsPerPartition": "100",
    "includeHeaders": "True",
    "groupCommit": "g",
    "groupIdPrefix": "p",
    "kafkaConsumer.pollTimeoutMs": "512",
    "fetchOffset.numRetries": "0",
    "fetchOffset.retryIntervalMs": "10",
    "lake": "/data/lake",
    "tiers": "Both",
    "columns": "Value, offset,timestamptype",
    "where": "offset < 5",
    "maxOffsetsPerTrigger": "3",
    "maxBytesPerTrigger": "3 MB",
    "minOffsetsPerTrigger": "2",
    "maxTriggerDelay": "5 m",
}


def test_every_option_is_read() -> None:
    options = parse_options(EACH, stream=False)
    assert options.client.bootstrap_servers == (("a", 1), ("::1", 2))
    assert (options.client.client_id, options.client.fetch_max_wait_ms) == ("me", 7)
    assert not options.client.read_committed
    assert options.subscription.assigned == {("a", 0), ("a", 2), ("b", 1)}
    assert options.starting == AtOffsets(
        option="startingOffsets", offsets={("a", 0): 5, ("a", 2): -2, ("b", 1): -2}
    )
    assert options.ending == AtTimestamp(option="endingTimestamp", timestamp_ms=1_700_000_000_000)
    assert options.columns == ("value", "offset", "timestampType")
    assert options.max_trigger_delay_ms == 300_000
    assert (options.fetch_offset_retries, options.poll_timeout_ms) == (0, 512)
    assert (options.max_offsets_per_trigger, options.max_bytes_per_trigger) == (3, 3 << 20)
    assert options.ignored == (
        "groupCommit",
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
    )


def test_a_start_that_is_neither_word_nor_json_is_told_of_both() -> None:
    with pytest.raises(OptionError, match="'soon'; it is earliest, latest or JSON such as"):
        parse_options({**LEAST, "startingOffsets": "soon"}, stream=False)


@pytest.mark.parametrize("spelt", [str.upper, str.lower])
def test_names_of_options_have_any_case(spelt: Callable[[str], str]) -> None:
    given = {spelt(name): value for name, value in EACH.items()}
    assert parse_options(given, stream=False) == parse_options(EACH, stream=False)


def test_one_time_for_all_goes_before_times_a_partition_and_these_before_offsets() -> None:
    given = {
        **LEAST,
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"t":{"0":5}}',
    }
    assert parse_options(given).starting == AtTimestamps(
        option="startingOffsetsByTimestamp", timestamps_ms={("t", 0): 5}
    )
    given["startingTimestamp"] = "7"
    assert parse_options(given).starting == AtTimestamp(option="startingTimestamp", timestamp_ms=7)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("subscribe", " , "), ("subscribePattern", "t"), ("assign", "{}"), ("startingOffsets", "latest"),
        ("startingOffsets", "soon"), ("startingOffsets", '{"t":{"0":-1}}'), ("startingOffsets", '{"t":{"0":-3}}'),
        ("startingOffsets", '{"t":{"0":"5"}}'), ("startingOffsets", '{"t":[5]}'), ("startingOffsets", "[1]"),
        ("endingOffsets", "earliest"), ("endingOffsets", '{"t":{"0":-2}}'), ("endingOffsets", '{"t":{"x":2}}'),
        ("startingOffsetsByTimestamp", "5"), ("startingOffsetsByTimestamp", '{"t":{"0":-1}}'),
        ("startingOffsets", " "), ("endingOffsets", ""),
        ("endingOffsetsByTimestamp", "{}}"), ("startingTimestamp", "noon"), ("endingTimestamp", ""),
        ("startingOffsetsByTimestampStrategy", "earliest"), ("failOnDataLoss", "maybe"), ("minPartitions", "0"),
        ("minPartitions", "many"), ("maxRecordsPerPartition", "-1"), ("maxOffsetsPerTrigger", "0"),
        ("minOffsetsPerTrigger", "1e3"), ("maxTriggerDelay", "soon"), ("includeHeaders", "1"),
        ("kafkaConsumer.pollTimeoutMs", "0"), ("fetchOffset.numRetries", "-1"), ("fetchOffset.retryIntervalMs", "x"),
        ("tiers", "cold"), ("columns", ""), ("columns", "value,values"), ("columns", "key,KEY"), ("where", "value = 1"),
        ("isolation", "serializable"), ("kafka.bootstrap.servers", "broker"), ("kafka.bootstrap.servers", ""),
        ("kafka.bootstrap.servers", "broker:70000"), ("kafka.isolation.level", "none"),
        ("kafka.request.timeout.ms", "0"), ("kafka.fetch.max.wait.ms", "fast"),
        ("kafka.security.protocol", "TLS"), ("kafka.sasl.jaas.config", "x"),
        ("kafka.ssl.truststore.location", "x"),
        ("kafka.auto.offset.reset", "earliest"), ("kafka.key.deserializer", "x"), ("kafka.value.deserializer", "x"),
        ("kafka.enable.auto.commit", "true"), ("kafka.interceptor.classes", "x"), ("kafka.no.such.thing", "1"),
        ("startingOfsets", "earliest"), ("topic", "t"), ("maxOffsetsPerTrigger", str(2**63)),
        ("maxBytesPerTrigger", "0"), ("maxBytesPerTrigger", "1.5g"), ("maxBytesPerTrigger", "1x"),
        ("maxBytesPerTrigger", "9000p"), ("maxBytesPerTrigger", "9" * 5000),
        ("maxTriggerDelay", "9" * 5000),
        # To brokers negative times are words: -1 is the end, and all rows would be left out.
        ("startingTimestamp", "-1"), ("endingTimestamp", "-2"), ("startingTimestamp", str(2**63)),
        ("startingOffsetsByTimestamp", '{"t":{"0":9223372036854775808}}'),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_an_error_that_names_the_option(option: str, value: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_options({**LEAST, option: value}, stream=False)
    assert f"'{option}'" in str(error.value)


def test_a_limit_may_be_as_large_as_a_number_of_spark_can_be() -> None:
    most = 2**63 - 1
    parsed = parse_options({**LEAST, "maxOffsetsPerTrigger": str(most)}, stream=True)
    assert parsed.max_offsets_per_trigger == most


def test_a_misspelt_option_is_told_its_name() -> None:
    with pytest.raises(OptionError, match="did you mean 'startingOffsets'"):
        parse_options({**LEAST, "startingofset": "earliest"})


@pytest.mark.parametrize("option", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    with pytest.raises(OptionError, match=f"'{option}' is not valid in a stream"):
        parse_options({**LEAST, option: "latest"}, stream=True)


@pytest.mark.parametrize(
    "given",
    [
        {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
        {"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"},
        {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
        {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"1":6}}'},
        {
            "startingOffsetsByTimestamp": '{"t":{"0":5}}',
            "endingOffsetsByTimestamp": '{"t":{"0":4}}',
        },
        {"startingTimestamp": "5", "tiers": "remote"},
        {"endingTimestamp": "5", "tiers": "remote"},
        {"endingOffsetsByTimestamp": '{"t":{"0":4}}', "tiers": "remote"},
    ],
)
def test_options_that_contradict_each_other_are_both_named(given: dict[str, str]) -> None:
    with pytest.raises(OptionError) as error:
        parse_options({**LEAST, **given}, stream=False)
    assert all(f"'{name}'" in str(error.value) for name in given)


def test_a_source_needs_brokers_and_topics() -> None:
    with pytest.raises(OptionError, match="'kafka.bootstrap.servers' must be given"):
        parse_options({"subscribe": "t"})
    with pytest.raises(OptionError, match="'subscribe', 'subscribePattern', 'assign'"):
        parse_options({"kafka.bootstrap.servers": "b:1"})


def test_the_table_of_options_spells_each_once() -> None:
    assert len({name.lower() for name in OPTIONS}) == len(OPTIONS)


def test_a_pattern_that_means_something_else_in_java_is_refused() -> None:
    for pattern in ("[a-z&&[^b]]+", "[a-c[x-z]]+", "t-[[:digit:]]", r"[a\\[]"):
        with pytest.raises(OptionError, match=r"subscribePattern.*no && within \[\], and no \["):
            parse_options({"kafka.bootstrap.servers": "a:1", "subscribePattern": pattern})
    for pattern in (r"[a\[b]", "[a-c]+[x-z]", r"\[a", "[^a]&&"):
        parse_options({"kafka.bootstrap.servers": "a:1", "subscribePattern": pattern})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingOffset", "did you mean 'startingOffsets'"),
        ("bootstrap.servers", "did you mean 'kafka.bootstrap.servers'"),
        ("path", r"load\(path\).*'subscribe'"),
        ("provider", "CREATE TEMPORARY VIEW"),
        ("topic", "use 'subscribe'"),
    ],
)
def test_an_unknown_option_is_told_with_what_may_be_meant(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}'.*{hint}"):
        parse_options({**LEAST, name: "x"})


def test_a_mistake_in_a_stream_is_told_by_the_first_call() -> None:
    """What `streamReader` itself raises is followed by an error of PySpark's own, which the user reads last."""
    source = KafkaDataSource({**LEAST, "endingOffsets": "latest"})
    reader = source.streamReader(source.schema())
    reader.stop()
    for ask in (
        reader.initialOffset,
        reader.getDefaultReadLimit,
        lambda: reader.partitions({}, {}),
    ):
        with pytest.raises(OptionError, match="'endingOffsets' is not valid in a stream"):
            ask()
