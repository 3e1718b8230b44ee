"""What a broker says of itself when it starts."""

from broker.banner import banner, unit_banner
from broker.config.loader import brokers_of, from_given


def lines(**given: str) -> list[str]:
    named = {name.replace("_", "."): (text, "test") for name, text in given.items()}
    return list(
        banner(from_given(named), {"data/lake": "/srv/data/lake", "data/log": "/srv/data/log"})
    )


def test_by_default_it_is_who_where_and_unsafe() -> None:
    first, *rest = lines()
    assert first.endswith("starts as node 1")
    assert rest == [
        "listeners: PLAINTEXT://127.0.0.1:9092 (PLAINTEXT)",
        "log.dirs: /srv/data/log; lake.uri: /srv/data/lake",
        "security: off",
    ]


def test_settings_that_differ_are_told_and_no_secret() -> None:
    said = lines(
        lake_max_lag_ms="5000",
        log_retention_hours="4",
        num_partitions="1",
        ssl_keystore_password="hush",
        lake_uri="s3://bucket/lake",
    )
    assert "hush" not in "".join(said)
    assert "lake.uri: s3://bucket/lake" in said[2]
    assert said[-1] == (
        "settings: lake.max.lag.ms=5000, log.retention.ms=14400000, ssl.keystore.password=(hidden)"
    )


def test_a_unit_tells_each_brokers_place_once() -> None:
    given = {"broker.processes": ("2", "test"), "node.id": ("4", "test")}
    configs = [config for _, config in brokers_of(given, from_given(given), "host-a")]
    first, *rest = unit_banner(configs, {"data/lake": "/srv/data/lake", "data/log/4": "/srv/4"})
    assert first.endswith("starts 2 brokers as one unit, nodes 4 to 5")
    assert rest == [
        "node 4: listeners: PLAINTEXT://127.0.0.1:9092 (PLAINTEXT); log.dirs: /srv/4",
        "node 5: listeners: PLAINTEXT://127.0.0.1:9093 (PLAINTEXT); log.dirs: data/log/5",
        "lake.uri: /srv/data/lake",
        "security: off",
        "settings: broker.processes=2, broker.rack=host-a",
    ]


def test_what_is_missing_of_security_is_told() -> None:
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    given = {
        "listeners": "SASL_PLAINTEXT://:9092",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{jaas} username="b" password="s";',
    }
    said = list(banner(from_given({n: (text, "test") for n, text in given.items()}), {}))
    assert "security: no encryption, no authorization" in said
    assert "password" not in "".join(said)
