"""The configuration: accepted and refused values, error messages, and the defaults of topics."""

from pathlib import Path

import pytest

from broker.__main__ import main
from broker.config.describe import ConfigSource, describe_broker, describe_topic
from broker.config.doc import render
from broker.config.dynamic import with_changes
from broker.config.loader import (
    LogConfigs,
    broker_settings,
    from_given,
    known_names,
    load,
    topic_config,
    topic_settings,
)
from broker.config.unserved import unserved_settings
from kafka_ds.process.settings import ConfigError, ConfigType, Setting
from kafka_ds.security.secret import Secret
from kafka_ds.topic.typed_columns import declared_columns

ROOT = Path(__file__).resolve().parents[3]


def message(*overrides: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load(None, overrides)
    text = str(raised.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "num.io.threads",
            "num.io.threads is not supported by this broker: one event loop serves all requests, without queues "
            "between threads; `--processes` runs several brokers as one",
        ),
        ("node.id", "node.id cannot be changed while the broker runs"),
        (
            "listeners",
            "listeners cannot be changed while the broker runs: listeners are opened at the start",
        ),
        (
            "max.conections",
            "max.conections is not a setting of this broker: did you mean max.connections or max.connections.per.ip?",
        ),
        (
            "retention.ms",
            "retention.ms is not a setting of this broker: for all topics it is called log.retention.ms",
        ),
        (
            "schema.registry.url",
            "schema.registry.url=4 does not begin with http:// or https://",
        ),
    ],
)
def test_what_a_running_broker_cannot_be_given_is_told_as_in_its_file(
    name: str, words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        with_changes(load(None), {"1": {name: "4"}})
    assert str(raised.value) == words


def test_embedded_defaults_need_no_file() -> None:
    config = load(None)
    assert (config.node_id, config.listeners) == (1, "PLAINTEXT://127.0.0.1:9092")
    assert (config.log_dirs, config.lake_uri) == (("data/log",), "data/lake")
    assert config.num_partitions == 1
    assert config.topic.remote_storage_enable
    assert config.lake_local_grace_ms == 60_000


def test_overrides_win_over_the_file_and_the_last_line_over_the_first(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nnode.id=7\nnum.partitions=5\n")
    config = load(file, ["node.id=8", "node.id=9"])
    assert (config.num_partitions, config.node_id) == (5, 9)
    assert config.origins == {
        "num.partitions": "server.properties line 3",
        "node.id": "--override",
    }


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("log.retention.ms=abc", "log.retention.ms=abc is not an integer (--override)"),
        ("num.partitions=", "num.partitions= is not an integer (--override)"),
        ("num.partitions=1_000", "num.partitions=1_000 is not an integer (--override)"),
        ("num.partitions=٣", "num.partitions=٣ is not an integer (--override)"),
        ("num.partitions=0", "num.partitions=0 is below the minimum, 1 (--override)"),
        ("console.port=65536", "console.port=65536 is above the maximum, 65535"),
        ("metrics.port=65536", "metrics.port=65536 is above the maximum, 65535"),
        ("num.partitions=2147483648", "num.partitions=2147483648 does not fit int"),
        ("retention", "--override retention: not of the form key=value"),
        (
            "auto.create.topics.enable=yes",
            "auto.create.topics.enable=yes is neither true nor false",
        ),
        ("log.segment.bytes=1048575", "log.segment.bytes=1048575 is below the minimum"),
        ("log.message.timestamp.type=Now", "is not one of: CreateTime, LogAppendTime"),
        (
            "lgo.dirs=a",
            "lgo.dirs is not a setting of this broker: did you mean log.dirs or log.dir?",
        ),
        (
            "no.such.thing.at.all=1",
            "no.such.thing.at.all is not a setting of this broker (--override)",
        ),
        ("segment.bytes=2097152", "for all topics it is called log.segment.bytes"),
        (
            "num.io.threads=9",
            "num.io.threads=9 is not supported by this broker: leave it out, or set it to 8 (--ov",
        ),
        ("authorizer.class.name=mine.Own", "leave it out, or set it to org.apache.kafka.metadata"),
        (
            "sasl.enabled.mechanisms=PLAIN,NTLM",
            "sasl.enabled.mechanisms=PLAIN,NTLM: NTLM is not one of: PLAIN, SCRAM-SHA-256",
        ),
        (
            "controller.quorum.voters=1@a:1",
            "is not supported: remove it, the lake is the quorum (--o",
        ),
        ("broker.id=3", "broker.id=3 is not supported: use node.id=3 (--o"),
        ("zookeeper.connect=z:2181", "is not supported: remove it, there is no ZooKeeper (--o"),
        ("log.cleanup.policy=shred", "log.cleanup.policy=shred is not one of: compact, delete"),
        ("log.cleaner.threads=0", "log.cleaner.threads=0 is below the minimum"),
        ("sasl.jaas.config=secret", "sasl.jaas.config=(hidden) is not supported"),
        ("log.dirs=", "log.dirs= does not name a directory"),
        ("log.dirs=a,b,a", "log.dirs=a,b,a names a directory twice"),
        ("lake.uri=", "lake.uri is empty"),
        ("lake.uri=s3:/bucket/a", "lake.uri=s3:/bucket/a names a folder: write s3://bucket/a"),
        ("lake.uri=gs:bucket", "lake.uri=gs:bucket names a folder: write gs://bucket"),
        (
            "lake.uri=hdfs://host/lake",
            "lake.uri=hdfs://host/lake is not a folder or an s3://, gs:// or abfss:// address",
        ),
        ("listeners=9092", "listeners=9092: 9092 is not NAME://host:port"),
        ("listeners=PLAINTEXT://h:65536", "65536 is not a valid port"),
        ("listeners=PLAINTEXT://a:1,PLAINTEXT://b:2", "a listener name is given twice"),
        (
            "listeners=SASL_SSL://a:1",
            "sasl.enabled.mechanisms is empty: clients of the listener SASL_SSL could not",
        ),
        ("listeners=INSIDE://a:1", "listeners: INSIDE is not in listener.security.protocol.map"),
        ("listener.security.protocol.map=A:B", "A:B is not NAME:protocol"),
        ("advertised.listeners=OTHER://a:1", "names OTHER, which does not listen"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "cannot be 0.0.0.0"),
        (
            "log.local.retention.ms=604800001",
            "local.retention.ms=604800001 is more than retention.ms",
        ),
        ("lake.log.retention.ms=1", "lake.log.retention.ms=1 is below the minimum"),
        (
            "replica.fetch.wait.max.ms=30001",
            "replica.fetch.wait.max.ms=30001 is above replica.socket.timeout.ms=30000",
        ),
        ("replica.lag.time.max.ms=499", "replica.fetch.wait.max.ms=500 is above replica.lag.time"),
        (
            "schema.registry.url=http://me:word@registry",
            "schema.registry.url may be read by all who describe brokers",
        ),
    ],
)
def test_a_mistake_is_named(override: str, words: str) -> None:
    assert words in message(override)


def test_a_mistake_in_a_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# a broker\n\nlog.retention.ms=abc\n")
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert str(raised.value) == (
        "log.retention.ms=abc is not an integer (server.properties line 3)"
    )


def test_all_mistakes_of_a_file_are_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("controller.listener.names=C\nnum.partitions=x\nnode.id=1\nnum.io.threads=9\n")
    assert main([str(file)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.rpartition("(")[2] for line in said] == [
        f"server.properties line {number})" for number in (1, 2, 4)
    ]
    assert all(line.startswith("kafka-ds: ") for line in said)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        # A wrong setting does not hide what others contradict.
        (
            ("num.partitions=x", "log.dirs=a,a", "broker.heartbeat.interval.ms=99000"),
            ("num.partitions", "log.dirs", "broker.heartbeat.interval.ms"),
        ),
        # Nothing is said that comes of the default in its place.
        (("listeners=A", "advertised.listeners=B://host:1"), ("listeners",)),
        (("broker.session.timeout.ms=x", "broker.heartbeat.interval.ms=99000"), ("broker.session",)),
        (("log.retention.ms=x", "log.local.retention.ms=999999999999"), ("log.retention.ms",)),
        (
            ("listeners=SASL_PLAINTEXT://:1", "listener.name.sasl_plaintext.sasl.enabled.mechanisms=X"),
            ("listener.name.",),
        ),
    ],
)  # fmt: skip
def test_contradictions_are_named_beside_wrong_settings(
    given: tuple[str, ...], named: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(None, given)
    lines = str(raised.value).splitlines()
    assert [line.startswith(name) for line, name in zip(lines, named, strict=True)] == [True] * len(
        lines
    )


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: no such file or directory"):
        load(tmp_path / "none")
    with pytest.raises(ConfigError, match="is a directory"):
        load(tmp_path)
    (tmp_path / "latin").write_bytes(b"node.id=\xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin")
    (tmp_path / "escape").write_text("node.id=\\u12\n")
    with pytest.raises(ConfigError, match=r"hexadecimal digits \(escape line 1\)"):
        load(tmp_path / "escape")


def test_what_is_not_honoured_may_stand_at_its_default() -> None:
    for name, setting in unserved_settings().items():
        text = setting.text(setting.default)
        if text is not None:
            assert name in load(None, [f"{name}={text}"]).origins
        with pytest.raises(ConfigError, match=name):
            load(None, [f"{name}=12345" if text != "12345" else f"{name}=1"])
    assert not unserved_settings().keys() & known_names()


def test_the_defaults_are_within_their_own_bounds() -> None:
    for setting in (*broker_settings().values(), *topic_settings().values()):
        text = setting.text(setting.default)
        if text is not None:
            assert setting.parse(text) == setting.default, setting.name


def test_topics_take_the_strongest_synonym() -> None:
    hours = load(None, ["log.retention.hours=2"])
    assert hours.topic.retention_ms == 2 * 3_600_000
    minutes = load(None, ["log.retention.hours=2", "log.retention.minutes=3"])
    assert minutes.topic.retention_ms == 180_000
    assert load(None, ["log.retention.hours=2", "log.retention.ms=5"]).topic.retention_ms == 5
    assert load(None, ["log.retention.hours=-1"]).topic.retention_ms == -1
    assert "log.roll.hours=0" in message("log.roll.hours=0")
    assert load(None, ["log.dir=one"]).log_dirs == ("one",)
    assert load(None, ["log.dir=one", "log.dirs=two, three"]).log_dirs == ("two", "three")


def test_tiering_off_for_the_broker_is_off_for_its_topics() -> None:
    config = load(None, ["remote.log.storage.system.enable=false"])
    assert not config.topic.remote_storage_enable
    with pytest.raises(ConfigError, match=r"remote\.log\.storage\.system\.enable=false"):
        topic_config(config, {"remote.storage.enable": "true"})


def test_a_topic_may_differ_from_its_broker() -> None:
    config = load(None, ["log.segment.bytes=2097152"])
    assert topic_config(config, {}).segment_bytes == 2 << 20
    own = topic_config(config, {"segment.bytes": "1048576", "retention.ms": "-1"})
    assert (own.segment_bytes, own.retention_ms) == (1 << 20, -1)
    assert own.cleanup_policy == ("delete",)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("segment.bytes", "1048575", "segment.bytes=1048575 is below the minimum"),
        (
            "segment.byte",
            "1",
            "segment.byte is not a setting of a topic: did you mean segment.bytes",
        ),
        ("cleanup.policy", "shred", "cleanup.policy=shred is not one of: compact, delete"),
        ("compression.type", "br", "compression.type=br is not one of: uncompressed, zstd"),
        ("compression.gzip.level", "0", "compression.gzip.level=0 is neither -1 nor one of 1 to 9"),
        ("compression.gzip.level", "10", "compression.gzip.level=10 is above the maximum"),
        ("compression.zstd.level", "23", "compression.zstd.level=23 is above the maximum"),
        ("retention.ms", "-2", "retention.ms=-2 is below the minimum, -1"),
        ("max.message.bytes", "x", "max.message.bytes=x is not an integer"),
        (
            "node.id",
            "1",
            "node.id is not a setting of a topic: it is a broker setting, put it in server.properties or --override, "
            "and start the broker again",
        ),
        (
            "lake.max.lag.ms",
            "1",
            "it is a broker setting, put it in server.properties or --override",
        ),
        ("lake.max.lagg.ms", "1", "did you mean the broker's lake.max.lag.ms?"),
        ("max.connections", "1", "it is a broker setting: kafka-configs --entity-type brokers"),
        ("log.retention.ms", "1", "it is a broker setting; the topic setting is retention.ms"),
        ("log.roll.hours", "168", "the topic setting is segment.ms (in ms)"),
        ("local.retention.bytes", "-1000", "is below the minimum, -2"),
    ],
)
def test_a_mistake_in_a_topic_is_named(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        topic_config(load(None), {name: text})
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"local.retention.ms": "5"}, "local.retention.ms=5 must be -2 or that of retention.ms"),
        (
            {"local.retention.bytes": "5", "retention.bytes": "6"},
            "local.retention.bytes=5 must be -2 or that of retention.bytes, 6",
        ),
        ({"local.retention.ms": "5", "retention.ms": "5"}, None),
        ({"local.retention.bytes": "-1"}, None),
        ({"local.retention.bytes": "-2", "retention.bytes": "6"}, None),
    ],
)
def test_without_copies_nothing_may_leave_the_disk_early(
    given: dict[str, str], words: str | None
) -> None:
    """KIP-950."""
    config = load(None)
    if words is None:
        assert not topic_config(config, {"remote.log.copy.disable": "true", **given}).copies_to_lake
        return
    with pytest.raises(ConfigError) as raised:
        topic_config(config, {"remote.log.copy.disable": "true", **given})
    assert words in str(raised.value)


def test_copies_may_not_lag_behind_the_local_retention() -> None:
    """Which would wait for them (KIP-1241)."""
    config = load(None, ["log.remote.copy.lag.ms=1000"])
    assert config.topic.remote_copy_lag_ms == 1000
    assert topic_config(config, {"local.retention.ms": "1000"}).remote_copy_lag_ms == 1000
    with pytest.raises(ConfigError, match=r"remote\.copy\.lag\.ms=1000 is more than the 999"):
        topic_config(config, {"local.retention.ms": "999"})
    with pytest.raises(ConfigError, match=r"remote\.copy\.lag\.bytes=7 is more than the 6"):
        topic_config(config, {"remote.copy.lag.bytes": "7", "retention.bytes": "6"})
    assert topic_config(config, {"remote.copy.lag.bytes": "-1"}).remote_copy_lag_bytes == -1


def test_a_compacted_topic_is_a_table_if_it_says_so() -> None:
    config = load(None)
    assert topic_config(config, {}).remote_storage_enable
    assert not topic_config(config, {"cleanup.policy": "compact,delete"}).remote_storage_enable
    said = {"cleanup.policy": "compact", "remote.storage.enable": "true"}
    assert topic_config(config, said).copies_to_lake
    all_compacted = load(None, ["log.cleanup.policy=compact"])
    assert not topic_config(all_compacted, {}).remote_storage_enable
    described = {each.name: each for each in describe_topic(config, {"cleanup.policy": "compact"})}
    assert described["remote.storage.enable"].value == "false"


def test_compaction_may_not_be_due_before_it_is_allowed() -> None:
    lags = {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=6 is more than max"):
        topic_config(load(None), lags)


def test_local_retention_is_within_the_total() -> None:
    config = load(None)
    assert topic_config(config, {"local.retention.ms": "1000"}).local_retention_ms == 1000
    with pytest.raises(ConfigError, match=r"local\.retention\.bytes=11 is more than"):
        topic_config(config, {"local.retention.bytes": "11", "retention.bytes": "10"})
    with pytest.raises(ConfigError, match=r"local\.retention\.ms=-1 is more than"):
        topic_config(config, {"local.retention.ms": "-1", "retention.ms": "10"})


def test_a_topics_settings_are_its_own_above_the_brokers() -> None:
    taken = topic_config(load(None, ["log.retention.ms=7"]), {"segment.bytes": "2000000"})
    assert (taken.retention_ms, taken.segment_bytes) == (7, 2_000_000)


def test_sources_and_synonyms_are_told() -> None:
    config = load(None, ["log.retention.hours=2", "num.partitions=4"])
    broker = {entry.name: entry for entry in describe_broker(config)}
    assert broker["num.partitions"].value == "4"
    assert broker["num.partitions"].source is ConfigSource.STATIC_BROKER
    assert broker["log.retention.ms"].value == "7200000"
    assert broker["lake.uri"].source is ConfigSource.DEFAULT
    topic = {entry.name: entry for entry in describe_topic(config, {"segment.bytes": "1048576"})}
    assert set(topic) == set(topic_settings())
    segment = topic["segment.bytes"]
    assert (segment.value, segment.source, segment.kind) == (
        "1048576",
        ConfigSource.TOPIC,
        ConfigType.INT,
    )
    assert [(s.name, s.value, s.source) for s in segment.synonyms] == [
        ("segment.bytes", "1048576", ConfigSource.TOPIC),
        ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),
    ]
    assert [(s.name, s.value, s.source) for s in topic["retention.ms"].synonyms] == [
        ("log.retention.hours", "7200000", ConfigSource.STATIC_BROKER),
        ("log.retention.ms", "604800000", ConfigSource.DEFAULT),
    ]
    assert topic["remote.storage.enable"].source is ConfigSource.DEFAULT
    assert all(entry.documentation for entry in (*broker.values(), *topic.values()))


def test_a_secret_is_not_shown() -> None:
    secret = Setting(name="ssl.key.password", kind=ConfigType.PASSWORD, default=None, says="")
    assert secret.sensitive
    assert secret.parse("hush") == Secret("hush")


def test_the_page_of_settings_is_true() -> None:
    assert (ROOT / "docs" / "reference" / "settings.md").read_text() == render(), (
        "run: python -m broker.config.doc > docs/reference/settings.md"
    )


def test_values_are_known_by_kafkas_names() -> None:
    config = from_given({"node.id": ("3", "here")})
    values = {name: config.value_of(name) for name in broker_settings()}
    assert values["node.id"] == 3


def test_the_same_settings_are_the_same_value() -> None:
    configs, config = LogConfigs(), load(None)
    first = configs.of(config, {"retention.ms": "1000", "segment.bytes": "1048576"})
    assert configs.of(config, {"segment.bytes": "1048576", "retention.ms": "1000"}) is first
    assert configs.of(config, {}) == topic_config(config, {}) != first
    other = load(None, ["log.segment.bytes=2097152"])
    assert configs.of(other, {}).segment_bytes == 2 << 20
    with pytest.raises(ConfigError):
        configs.of(other, {"segment.bytes": "none"})


def test_a_console_knows_its_readers_by_a_listener() -> None:
    secured = [
        "listeners=CLIENT://127.0.0.1:1,TOKENS://127.0.0.1:2",
        "listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,TOKENS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "listener.name.tokens.sasl.enabled.mechanisms=OAUTHBEARER",
        "inter.broker.listener.name=CLIENT",
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
        "listener.name.client.scram-sha-512.sasl.jaas.config=ScramLoginModule required username=a password=b;",
        "console.port=0",
    ]
    assert load(None, secured).console_listener == "CLIENT", "the first"
    assert load(None, [*secured, "console.listener.name=tokens"]).console_listener == "TOKENS"
    with pytest.raises(ConfigError, match="console.listener.name=NONE is not among listeners"):
        load(None, [*secured, "console.listener.name=none"])


@pytest.mark.parametrize(
    "other", ["console.port=0", "broker.processes=2", "remote.log.storage.system.enable=false"]
)
def test_a_read_only_broker_says_what_it_cannot_be(other: str) -> None:
    with pytest.raises(ConfigError, match="lake.read.only.replicated=true needs lake.read.only"):
        load(None, ["lake.read.only.replicated=true"])
    assert load(None, ["lake.read.only=true"]).lake_read_only
    with pytest.raises(ConfigError) as refused:
        load(None, ["lake.read.only=true", other])
    assert str(refused.value).startswith(other.partition("=")[0])
    assert "a broker with lake.read.only=true" in str(refused.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "broker", ""])
def test_a_console_beside_secured_listeners_stays_on_its_machine(host: str) -> None:
    secured = "listeners=PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093"
    wanted = ["console.port=0", f"console.host={host}", secured]
    with pytest.raises(ConfigError, match=r"console\.host=.*listeners=PLAINTEXT"):
        load(None, wanted)
    passwords = [
        "listeners=PLAINTEXT://127.0.0.1:9092,SASL_PLAINTEXT://127.0.0.1:9093",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "console.listener.name=SASL_PLAINTEXT",
        "console.port=0",
    ]
    with pytest.raises(ConfigError, match="crosses the network in clear"):
        load(None, [*passwords, f"console.host={host}"])
    assert load(None, passwords).console_host == "127.0.0.1"
    assert load(None, [*wanted, "console.listener.name=SSL"]).console_listener == "SSL"
    assert load(None, ["console.port=0", f"console.host={host}"]).console_host == host
    for loopback in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
        assert load(None, ["console.port=0", f"console.host={loopback}", secured])


def test_a_setting_of_typed_tables_that_is_not_known_is_refused_by_name() -> None:
    config = load(None)
    for text in ("json", "protobuf"):
        made = topic_config(config, {"lake.table.value.format": text})
        assert made.lake_table_value_format == text
    with pytest.raises(ConfigError, match="is not one of: none, json"):
        topic_config(config, {"lake.table.value.format": "xml"})
    with pytest.raises(ConfigError, match="is not one of: append, current"):
        topic_config(config, {"lake.table.mode": "upsert"})
    with pytest.raises(ConfigError, match="lake.table.cluster.columns=a,b,c,d,e names more than 4"):
        topic_config(config, {"lake.table.cluster.columns": "a,b,c,d,e"})


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("a,b,c,d,e", "a,b,c,d,e names more than 4 columns"),
        ("_date,_DATE", "_date,_DATE names a column twice"),
        ("_key", "_key is none of _partition, _schema_id, _date, and no field"),
        ("_Date", "_Date is none of _partition, _schema_id, _date, and no field"),
        ("a b", "no table is partitioned by a column called 'a b'"),
        ("a__string", "no table is partitioned by a column called 'a__string'"),
        ("partition", "no table is partitioned by a column called 'partition'"),
        ("x" * 61, "no table is partitioned by a column called 'xx"),
        ("city", "lake.table.columns must say whether city is STRING or BIGINT"),
        ("price", "lake.table.columns must say whether price is STRING or BIGINT"),
    ],
)
def test_a_partition_column_that_cannot_be_one_is_refused_by_name(
    columns: str, problem: str
) -> None:
    config = load(None)
    json = {"lake.table.value.format": "json", "lake.table.columns": "price DOUBLE,at.city STRING"}
    with pytest.raises(ConfigError, match=f"lake.table.partition.columns: {problem}"):
        topic_config(config, {**json, "lake.table.partition.columns": columns})


def test_partition_columns_and_cluster_columns_exclude_each_other() -> None:
    config = load(None)
    names = {
        "lake.table.value.format": "json",
        "lake.table.columns": "city STRING",
        "lake.table.partition.columns": "_date,city",
    }
    assert topic_config(config, names).lake_table_partition_columns == ("_date", "city")
    of_schema = {"lake.table.value.format": "avro", "lake.table.partition.columns": "city"}
    assert topic_config(config, of_schema).lake_table_partition_columns == ("city",)
    variant = {"lake.table.columns": "x VARIANT", "lake.table.cluster.columns": "n,x"}
    with pytest.raises(ConfigError, match="no table is clustered by a VARIANT, x"):
        topic_config(config, variant)
    with pytest.raises(ConfigError, match="a Delta table has one of both"):
        topic_config(config, {**names, "lake.table.cluster.columns": "price"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("price", "'price' is not a path and a type"),
        ("a DOUBLE,price MONEY", "'price MONEY': MONEY is not one of BIGINT, DOUBLE"),
        ("a ARRAY<DOUBLE", "ARRAY<DOUBLE is not one of"),
        ("a ARRAY<VARIANT>", "ARRAY<VARIANT> is not one of"),
        ("a.b VARIANT", "'a.b VARIANT': only a field of the value itself can be VARIANT"),
        ("a..b DOUBLE", "no column of a field can be called ''"),
        ("a__string DOUBLE", "no column of a field can be called 'a__string'"),
        ("_Key STRING", "each table has a column _key of its own"),
        ("_change_type STRING", "each table has a column _change_type of its own"),
        ("pos DOUBLE,Pos.lat DOUBLE", "'Pos.lat DOUBLE' and 'pos DOUBLE' are one column"),
        (".".join("abcdefghijk") + " DOUBLE", "is nested deeper than 10"),
    ],
)
def test_a_column_that_no_typed_table_can_have_is_refused_by_its_part(
    text: str, problem: str
) -> None:
    config = load(None)
    good = "price DOUBLE, pos.lat double,tags Array<String>"
    made = topic_config(config, {"lake.table.columns": good})
    assert declared_columns(made.lake_table_columns) == {
        ("price",): "double",
        ("pos", "lat"): "double",
        ("tags",): "array<string>",
    }
    with pytest.raises(ConfigError, match=r"lake\.table\.columns: ") as raised:
        topic_config(config, {"lake.table.columns": text})
    assert problem in str(raised.value)
