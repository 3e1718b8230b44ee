"""What the repository deploys is what a broker takes: the image's settings and the Kubernetes manifests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config.loader import load

OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations"
MANIFESTS = OPERATIONS / "kubernetes" / "kafka-ds.yaml"
DOCKERFILE = OPERATIONS.parents[1] / "Dockerfile"


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], Any]:
    """By kind and name."""
    found = list(yaml.safe_load_all(MANIFESTS.read_text()))
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_the_image_serves_clients_of_its_host() -> None:
    config = load(OPERATIONS / "image.properties")
    (listener,) = config.endpoints
    (advertised,) = config.advertised_endpoints
    assert (listener.host, listener.port) == ("0.0.0.0", 9092)
    assert (advertised.host, advertised.port) == ("localhost", 9092)
    volume = re.search(r"^VOLUME (\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert volume
    assert all(
        str(path).startswith(f"{volume[1]}/") for path in (*config.log_dirs, config.lake_uri)
    )


def test_a_broker_takes_the_arguments_of_each_pod(
    manifests: dict[tuple[str, str], Any], tmp_path: Path
) -> None:
    (container,) = manifests["StatefulSet", "kafka-ds"]["spec"]["template"]["spec"]["containers"]
    file = tmp_path / "server.properties"
    file.write_text(manifests["ConfigMap", "kafka-ds"]["data"]["server.properties"])
    environment = {"POD_NAME": "kafka-ds-2", "POD_NAMESPACE": "streams", "POD_INDEX": "2"}
    assert {each["name"] for each in container["env"]} == set(environment)
    words = [
        re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word)
        for word in container["args"]
    ]
    assert words[0] == container["volumeMounts"][1]["mountPath"]
    assert words[1::2] == ["--override"] * (len(words) // 2)
    config = load(file, words[2::2])
    assert config.node_id == 2
    (advertised,) = config.advertised_endpoints
    brokers = manifests["Service", "kafka-ds-brokers"]["metadata"]["name"]
    assert advertised.host == f"kafka-ds-2.{brokers}.streams.svc.cluster.local"
    ports = {each["containerPort"] for each in container["ports"]}
    assert ports == {config.endpoints[0].port, config.metrics_port}


def test_each_name_in_the_manifests_leads_somewhere(manifests: dict[tuple[str, str], Any]) -> None:
    pods = manifests["StatefulSet", "kafka-ds"]["spec"]
    labels = pods["template"]["metadata"]["labels"]
    selectors = [
        pods["selector"]["matchLabels"],
        manifests["PodDisruptionBudget", "kafka-ds"]["spec"]["selector"]["matchLabels"],
    ]
    selectors += [
        each["spec"]["selector"] for (kind, _), each in manifests.items() if kind == "Service"
    ]
    assert all(selector == labels for selector in selectors)
    assert ("Service", pods["serviceName"]) in manifests
    (container,) = pods["template"]["spec"]["containers"]
    named = {each["name"] for each in container["ports"]}
    probes = [container[probe] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {(probe.get("tcpSocket") or probe["httpGet"])["port"] for probe in probes} <= named
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pods["template"]["spec"]["volumes"]} | {
        each["metadata"]["name"] for each in pods["volumeClaimTemplates"]
    }
    assert ("Secret", container["envFrom"][0]["secretRef"]["name"]) in manifests
    assert ("ConfigMap", pods["template"]["spec"]["volumes"][0]["configMap"]["name"]) in manifests
