"""Shell: writes docs/reference/protocol.md from the registry: what is served, and in which versions.

The page is generated, and a test compares it with what this file renders, so that it cannot drift from what ApiVersions
answers. Usage: ``python -m broker.protocol_doc > docs/reference/protocol.md``.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType

import broker.handlers
from broker.registry import REGISTRY, Registry, Served

HEAD = """# Protocol coverage

Generated from the registry of handlers by `python -m broker.protocol_doc`; a test keeps it true. ApiVersions answers
from the same registry. "From" is where the advertised range begins when that is lower than what is served.

| key | API | versions | from | what it does |
| --- | --- | --- | --- | --- |
"""
# What a handler's heading begins with: "EndTxn 0-5: ", or two APIs that share a file.
NAMES_AND_VERSIONS = re.compile(r"\w+ \d+(-\d+)?(, [A-Z]\w+ \d+(-\d+)?)*[,:] ")
NO_QUORUM = "of a Raft quorum of controllers: here the lake's conditional put takes its place"
# What Kafka 4.4 has and this broker does not serve, by key: the name, the versions, and why.
NOT_SERVED = {
    52: ("Vote", "0–2", NO_QUORUM),
    53: ("BeginQuorumEpoch", "0–1", NO_QUORUM),
    54: ("EndQuorumEpoch", "0–1", NO_QUORUM),
    59: ("FetchSnapshot", "0–1", NO_QUORUM),
    70: ("ControllerRegistration", "0", NO_QUORUM),
    80: ("AddRaftVoter", "0–1", NO_QUORUM),
    81: ("RemoveRaftVoter", "0", NO_QUORUM),
    82: ("UpdateRaftVoter", "0", NO_QUORUM),
    93: (
        "StreamsGroupTopologyDescriptionUpdate",
        "0",
        "the full description of a topology (KIP-1331), for which Kafka needs a plugin",
    ),
    94: ("UnregisterController", "0", NO_QUORUM),
}
NOT_SERVED_HEAD = """
## Not served

The rest of Kafka 4.4's keys; a test compares both tables with Kafka's definitions.

| key | API | versions | why |
| --- | --- | --- | --- |
"""
TAIL = """
A version that was not advertised, or an unknown key, closes the connection, as in Kafka. ApiVersions in an unknown
version is answered in version 0 (KIP-511); Produce 0–2, advertised for the sake of old librdkafka, is answered with
UNSUPPORTED_VERSION. InitProducerId 6 (two-phase commit, KIP-939), which Kafka 4.4 calls unstable, is served with
`unstable.api.versions.enable=true`, as in Kafka.

One of Kafka's messages has a field that is kafka-ds only, with a tag that Kafka does not use: BrokerHeartbeat's
`full_log_dirs` (tag 10000), the offline log directories that [only are full](../decisions/0033-full-disks.md).
"""


def render(registry: Registry = REGISTRY) -> str:
    """The page, in markdown."""
    not_served = "".join(
        f"| {key} | {name} | {versions} | {why} |\n"
        for key, (name, versions, why) in NOT_SERVED.items()
    )
    rows = "".join(_row(served) for served in registry)
    return HEAD + rows + TAIL + NOT_SERVED_HEAD + not_served


def _row(served: Served) -> str:
    versions = _range(served.lowest, served.highest)
    lower = str(served.advertised[0]) if served.advertised[0] != served.lowest else ""
    return f"| {served.api_key} | {served.name} | {versions} | {lower} | {_purpose(served)} |\n"


def _range(lowest: int, highest: int) -> str:
    return str(lowest) if lowest == highest else f"{lowest}–{highest}"


def _purpose(served: Served) -> str:
    module: ModuleType = sys.modules[served.handler.__module__]
    first = (module.__doc__ or "").strip().splitlines()[0]
    said = first.removeprefix("Pure:").removeprefix("Shell:").strip()
    return NAMES_AND_VERSIONS.sub("", said, count=1)


if __name__ == "__main__":
    assert broker.handlers is not None
    sys.stdout.write(render())
