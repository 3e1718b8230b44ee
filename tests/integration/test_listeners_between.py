"""Brokers that reach each other only by TLS and SASL: they form a cluster, and replicate."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config.dynamic import DynamicBrokerConfig
from broker.transport.peer import PeerConnection, PeerUnreachable
from broker.transport.secure_network import SecureNetwork
from kafka_ds.process.settings import ConfigError
from kafka_ds.process.system import SystemNetwork
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import CreateTopicsRequest
from kafka_ds.protocol.messages.topics import CreatableTopic
from tests.certificates import Authority
from tests.in_process import batch_of, config_of, in_process_cluster, new_node
from tests.loops import in_loop
from tests.requests import build


def settings_of(folder: Path, **more: object) -> dict[str, object]:
    authority = Authority(folder / "certificates")
    identity = authority.issue("broker")
    return {
        "listeners": "BETWEEN://127.0.0.1:0",
        "listener_security_protocol_map": "BETWEEN:SASL_SSL",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": identity.both_file,
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": authority.file,
        "listener_name_between_ssl_client_auth": "required",
        "listener_name_between_connections_max_reauth_ms": 1_000,
        "sasl_enabled_mechanisms": "PLAIN",
        "sasl_mechanism_inter_broker_protocol": "PLAIN",
        "listener_name_between_plain_sasl_jaas_config": (
            'x.PlainLoginModule required username="broker" password="hush" user_broker="hush";'
        ),
        **more,
    }


@in_loop
async def test_brokers_reach_each_other_by_tls_and_sasl(tmp_path: Path) -> None:
    async with in_process_cluster(tmp_path, 2, **settings_of(tmp_path)) as cluster:
        first = cluster.nodes[1]
        await cluster.until(
            "both brokers",
            lambda: all(len(n.node.metadata.brokers) == 2 for n in cluster.nodes.values()),
        )
        image = first.node.metadata
        assert {e.security_protocol for b in image.brokers.values() for e in b.endpoints} == {
            "SASL_SSL"
        }
        assert cluster.controller.owner.server.connections.metrics.authentications
        wanted = build(CreatableTopic, name="t", num_partitions=1, replication_factor=2)
        response = await first.ask(CreateTopicsRequest(topics=[wanted]), 7)
        assert response.topics[0].error_code == ErrorCode.NONE, response
        await cluster.until(
            "the topic", lambda: all("t" in n.node.metadata.topics for n in cluster.nodes.values())
        )
        leader = cluster.nodes[image.topics["t"].partitions[0].leader]
        answer = await leader.produce("t", batch_of([b"x"]))  # acks=all: the other one has it
        assert answer.error_code == ErrorCode.NONE
        # One that has just been made, or was ended by a machine that stood still, is nobody's yet.
        await cluster.until(
            "brokers that are known",
            lambda: {str(c.principal) for c in leader.owner.server.connections} == {"User:broker"},
        )
        servers = [broker.owner.server for broker in cluster.nodes.values()]
        await cluster.until(
            "sessions that were renewed",
            lambda: sum(s.connections.metrics.reauthentications for s in servers) > 2,
        )
        answer = await leader.produce("t", batch_of([b"y"]))
        assert answer.error_code == ErrorCode.NONE


@in_loop
async def test_a_wrong_password_between_brokers_is_said_once_by_its_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    between = 'x.PlainLoginModule required username="broker" password="{}" user_broker="hush";'
    given = settings_of(tmp_path)
    async with in_process_cluster(tmp_path, 1, **given) as cluster:
        port = cluster.nodes[1].node.metadata.brokers[1].endpoints[0].port
        given["listener_name_between_plain_sasl_jaas_config"] = between.format("mistyped")
        config = config_of(tmp_path / "other", **given)
        network = SecureNetwork(SystemNetwork(), DynamicBrokerConfig(config))
        for _ in range(2):
            with pytest.raises(PeerUnreachable, match="Invalid username or password"):
                await PeerConnection.connect(
                    network, "127.0.0.1", port, client_id="broker-2", timeout_ms=30_000
                )
    (warning,) = [r.getMessage() for r in caplog.records if r.name == SecureNetwork.__module__]
    assert f"127.0.0.1:{port}: failed authentication with " in warning
    assert "listener.name.between.plain.sasl.jaas.config: " in warning
    assert "mistyped" not in caplog.text


@in_loop
async def test_what_brokers_need_of_each_other_is_asked_for_at_the_start(tmp_path: Path) -> None:
    given = settings_of(tmp_path)
    with pytest.raises(ConfigError, match="brokers need it to connect to each other"):
        new_node(
            tmp_path,
            **{k: v for k, v in given.items() if not k.endswith("jaas_config")},
        )
    with pytest.raises(
        ConfigError, match=r"sasl\.mechanism\.inter\.broker\.protocol= is not among"
    ):
        new_node(tmp_path, **{k: v for k, v in given.items() if "inter_broker_protocol" not in k})
    more: dict[str, object] = {"ssl_truststore_location": tmp_path / "nothing"}
    for client_auth in ("required", "none"):  # Whom it trusts matters to who connects, too.
        more["listener_name_between_ssl_client_auth"] = client_auth
        node = new_node(tmp_path, **{**given, **more})
        with pytest.raises(
            ConfigError, match=r"listener BETWEEN: ssl\.truststore\.location=.*nothing"
        ) as error:
            await node.server.open(node.config, lambda *_: None, lambda *_: None)
    assert "hush" not in str(error.value)
