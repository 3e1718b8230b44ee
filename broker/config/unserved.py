"""Pure: the settings of Apache Kafka 4.4 that this broker does not support: why not, then name, type and default.

They are accepted at their default value only. A setting that becomes supported moves to `broker.config.broker` or
`broker.log.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from kafka_ds.process.settings import ConfigType, Setting, SettingValue

_KINDS = {
    "B": ConfigType.BOOLEAN, "S": ConfigType.STRING, "I": ConfigType.INT, "H": ConfigType.SHORT, "L": ConfigType.LONG,
    "D": ConfigType.DOUBLE, "A": ConfigType.LIST, "C": ConfigType.CLASS, "P": ConfigType.PASSWORD,
}  # fmt: skip

# @ stands for org.apache.kafka.
_TABLE = """
there is no quorum of controllers: brokers elect one by a lease in the lake, and its log is a table there:
controller.listener.names A
controller.quorum.append.linger.ms I 25
controller.quorum.auto.join.enable B false
controller.quorum.bootstrap.servers A
controller.quorum.election.backoff.max.ms I 1000
controller.quorum.election.timeout.ms I 1000
controller.quorum.fetch.max.bytes I 1048576
controller.quorum.fetch.snapshot.max.bytes I 1048576
controller.quorum.fetch.timeout.ms I 2000
controller.quorum.request.timeout.ms I 2000
controller.quorum.retry.backoff.ms I 20
controller.quorum.voters A
controller.socket.timeout.ms I 30000
early.start.listeners A
metadata.log.dir S
metadata.log.max.record.bytes.between.snapshots L 20971520
metadata.log.max.snapshot.interval.ms L 3600000
metadata.log.segment.bytes I 1073741824
metadata.log.segment.ms L 604800000
metadata.max.idle.interval.ms I 500
metadata.max.retention.bytes L 104857600
metadata.max.retention.ms L 604800000
sasl.mechanism.controller.protocol S GSSAPI

this broker loads no Java classes:
alter.config.policy.class.name C
client.quota.callback.class C
config.providers A
create.topic.policy.class.name C
group.share.dlq.manager.class.name S @server.share.dlq.DefaultShareGroupDLQManager
group.streams.topology.description.plugin.class C
kafka.metrics.polling.interval.secs I 10
kafka.metrics.reporters A
metric.reporters A @common.metrics.JmxReporter
principal.builder.class C @common.security.authenticator.DefaultKafkaPrincipalBuilder
sasl.client.callback.handler.class C
sasl.login.callback.handler.class C
sasl.login.class C
sasl.oauthbearer.jwt.retriever.class C @common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class C @common.security.oauthbearer.DefaultJwtValidator
sasl.server.callback.handler.class C
security.providers S
ssl.engine.factory.class C

one event loop serves all requests, without queues between threads; `--processes` runs several brokers as one:
background.threads I 10
group.coordinator.background.threads I 2
group.coordinator.threads I 4
num.io.threads I 8
num.network.threads I 3
queued.max.requests I 500
share.coordinator.threads I 1

a coordinator appends what a turn of the event loop has for a partition at once, without a buffer that is kept:
group.coordinator.append.linger.ms I -1
group.coordinator.cached.buffer.max.bytes I 1048588
share.coordinator.append.linger.ms I -1
share.coordinator.cached.buffer.max.bytes I 1048588

an assignment is made within the event loop:
group.consumer.assignor.offload.enable B true
group.share.assignor.offload.enable B true
group.streams.assignor.offload.enable B true

tasks of Streams are assigned as by Kafka 4.4's sticky assignor, which has neither warm-up tasks nor racks yet:
group.streams.assignors A sticky
group.streams.max.warmup.replicas I 20
group.streams.num.warmup.replicas I 2
group.streams.rack.aware.assignment.tags A

a request that waits is forgotten as soon as it is answered, so nothing is purged:
delete.records.purgatory.purge.interval.requests I 1
fetch.purgatory.purge.interval.requests I 1000
producer.purgatory.purge.interval.requests I 1000
share.fetch.purgatory.purge.interval.requests I 1000

internal topics are written without compression:
offsets.topic.compression.codec I 0
share.coordinator.state.topic.compression.codec I 0

metrics are counters and gauges, of which a monitoring system takes samples:
metrics.num.samples I 2
metrics.recording.level S INFO
metrics.sample.window.ms L 30000

a broker asks no OAuth server for tokens of its own; brokers know each other by other mechanisms:
sasl.login.connect.timeout.ms I
sasl.login.read.timeout.ms I
sasl.login.refresh.buffer.seconds H 300
sasl.login.refresh.min.period.seconds H 60
sasl.login.refresh.window.factor D 0.8
sasl.login.refresh.window.jitter D 0.05
sasl.login.retry.backoff.max.ms L 10000
sasl.login.retry.backoff.ms L 100
sasl.oauthbearer.assertion.algorithm S RS256
sasl.oauthbearer.assertion.claim.aud S
sasl.oauthbearer.assertion.claim.exp.seconds I 300
sasl.oauthbearer.assertion.claim.iss S
sasl.oauthbearer.assertion.claim.jti.include B false
sasl.oauthbearer.assertion.claim.nbf.seconds I 60
sasl.oauthbearer.assertion.claim.sub S
sasl.oauthbearer.assertion.file S
sasl.oauthbearer.assertion.private.key.file S
sasl.oauthbearer.assertion.private.key.passphrase P
sasl.oauthbearer.assertion.template.file S
sasl.oauthbearer.client.credentials.client.id S
sasl.oauthbearer.client.credentials.client.secret P
sasl.oauthbearer.scope S
sasl.oauthbearer.scope.claim.name S scope
sasl.oauthbearer.token.endpoint.url S

keys come from a file, which is read at start:
sasl.oauthbearer.jwks.endpoint.refresh.ms L 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms L 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms L 100

it chooses among parts of Java's TLS; here OpenSSL does the work:
ssl.keymanager.algorithm S SunX509
ssl.protocol S TLSv1.3
ssl.provider S
ssl.secure.random.implementation S
ssl.trustmanager.algorithm S PKIX

a broker connects to another one within a fixed time:
socket.connection.setup.timeout.max.ms L 30000
socket.connection.setup.timeout.ms L 10000

set it per listener and mechanism, as `listener.name.<listener>.<mechanism>.sasl.jaas.config`:
sasl.jaas.config P

one worker process copies and expires, so that a broker's copies share their commits and leave its cores to clients:
remote.log.manager.copier.thread.pool.size I 10
remote.log.manager.expiration.thread.pool.size I 10
remote.log.manager.thread.pool.size I 2

followers ask each leader once for the remote state of all partitions, in the event loop:
remote.log.manager.follower.thread.pool.size I 2

there are no plug-ins, so there is no custom metadata:
remote.log.metadata.custom.metadata.max.bytes I 128

the tier's metadata is a table in the lake; no listener serves it:
remote.log.metadata.manager.listener.name S

the tier is built in; its tables are Delta tables (lake.uri):
remote.log.metadata.manager.class.name S @server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path S
remote.log.metadata.manager.impl.prefix S rlmm.config.
remote.log.storage.manager.class.name S
remote.log.storage.manager.class.path S
remote.log.storage.manager.impl.prefix S rsm.config.

it is called node.id:
broker.id I -1

a directory that fails is told to the controller by the next request, for as long as it takes:
log.dir.failure.timeout.ms L 30000

an answer of DescribeTopicPartitions has 2,000 partitions at most:
max.request.partition.size.limit I 2000

a partition's membership in a transaction is always verified (KIP-890):
transaction.partition.verification.enable B true
"""
# Of a group itself, where Kafka has them: the broker's name without `group.`, but for the last one.
_OF_GROUPS = (
    "consumer.assignor.offload.enable",
    "share.assignor.offload.enable",
    "streams.assignor.offload.enable",
    "streams.num.warmup.replicas",
    "streams.rack.aware.assignment.tags",
)
_ASSIGNOR = "streams.assignor.name"


@cache
def unserved_settings() -> Mapping[str, Setting]:
    """The unsupported settings of brokers by name, each with the reason; they accept only their defaults."""
    found: dict[str, Setting] = {}
    for block in _TABLE.replace("@", "org.apache.kafka.").strip().split("\n\n"):
        reason, *rows = block.splitlines()
        for row in rows:
            name, kind, *default = row.split(" ")
            found[name] = _setting(name, _KINDS[kind], "".join(default), reason.rstrip(":"))
    return dict(sorted(found.items()))


@cache
def unserved_group_settings() -> Mapping[str, Setting]:
    """The unsupported settings of groups by name."""
    found = {name: replace(unserved_settings()[f"group.{name}"], name=name) for name in _OF_GROUPS}
    of_assignors = unserved_settings()["group.streams.assignors"]
    found[_ASSIGNOR] = _setting(_ASSIGNOR, ConfigType.STRING, "", of_assignors.says)
    return found


def _setting(name: str, kind: ConfigType, default: str, reason: str) -> Setting:
    bare = Setting(name=name, kind=kind, default=None, says=reason)
    value: SettingValue = (
        bare.parse(default) if default else () if kind is ConfigType.LIST else None
    )
    return replace(bare, default=value, honours=(bare.text(value) or "",))
