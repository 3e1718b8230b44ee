"""Pure: the settings of Apache Kafka 4.4 that this broker does not support: name, type, default, in alphabetical order.

They are accepted at their default value only. A setting that becomes supported moves to `broker.config.broker` or
`broker.log.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from kafka_ds.process.settings import ConfigType, Setting, SettingValue

_KINDS = {
    "B": ConfigType.BOOLEAN, "S": ConfigType.STRING, "I": ConfigType.INT, "H": ConfigType.SHORT, "L": ConfigType.LONG,
    "D": ConfigType.DOUBLE, "A": ConfigType.LIST, "C": ConfigType.CLASS, "P": ConfigType.PASSWORD,
}  # fmt: skip

# @ stands for org.apache.kafka.
_TABLE = """
alter.config.policy.class.name C
background.threads I 10
broker.id I -1
client.quota.callback.class C
config.providers A
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
cordoned.log.dirs A
create.topic.policy.class.name C
delete.records.purgatory.purge.interval.requests I 1
early.start.listeners A
fetch.purgatory.purge.interval.requests I 1000
group.consumer.assignor.offload.enable B true
group.coordinator.append.linger.ms I -1
group.coordinator.background.threads I 2
group.coordinator.cached.buffer.max.bytes I 1048588
group.coordinator.threads I 4
group.share.assignor.offload.enable B true
group.share.dlq.manager.class.name S @server.share.dlq.DefaultShareGroupDLQManager
group.streams.acceptable.recovery.lag L 10000
group.streams.assignor.offload.enable B true
group.streams.assignors A sticky
group.streams.max.warmup.replicas I 20
group.streams.min.task.offset.interval.ms I 15000
group.streams.num.warmup.replicas I 2
group.streams.rack.aware.assignment.tags A
group.streams.task.offset.interval.ms I 60000
group.streams.topology.description.plugin.class C
kafka.metrics.polling.interval.secs I 10
kafka.metrics.reporters A
log.dir.failure.timeout.ms L 30000
max.request.partition.size.limit I 2000
metadata.log.dir S
metadata.log.max.record.bytes.between.snapshots L 20971520
metadata.log.max.snapshot.interval.ms L 3600000
metadata.log.segment.bytes I 1073741824
metadata.log.segment.ms L 604800000
metadata.max.idle.interval.ms I 500
metadata.max.retention.bytes L 104857600
metadata.max.retention.ms L 604800000
metric.reporters A @common.metrics.JmxReporter
metrics.num.samples I 2
metrics.recording.level S INFO
metrics.sample.window.ms L 30000
num.io.threads I 8
num.network.threads I 3
offsets.topic.compression.codec I 0
principal.builder.class C @common.security.authenticator.DefaultKafkaPrincipalBuilder
producer.purgatory.purge.interval.requests I 1000
queued.max.requests I 500
remote.log.manager.copier.thread.pool.size I 10
remote.log.manager.expiration.thread.pool.size I 10
remote.log.manager.follower.thread.pool.size I 2
remote.log.manager.thread.pool.size I 2
remote.log.metadata.custom.metadata.max.bytes I 128
remote.log.metadata.manager.class.name S @server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path S
remote.log.metadata.manager.impl.prefix S rlmm.config.
remote.log.metadata.manager.listener.name S
remote.log.storage.manager.class.name S
remote.log.storage.manager.class.path S
remote.log.storage.manager.impl.prefix S rsm.config.
sasl.client.callback.handler.class C
sasl.jaas.config P
sasl.login.callback.handler.class C
sasl.login.class C
sasl.login.connect.timeout.ms I
sasl.login.read.timeout.ms I
sasl.login.refresh.buffer.seconds H 300
sasl.login.refresh.min.period.seconds H 60
sasl.login.refresh.window.factor D 0.8
sasl.login.refresh.window.jitter D 0.05
sasl.login.retry.backoff.max.ms L 10000
sasl.login.retry.backoff.ms L 100
sasl.mechanism.controller.protocol S GSSAPI
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
sasl.oauthbearer.jwks.endpoint.refresh.ms L 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms L 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms L 100
sasl.oauthbearer.jwt.retriever.class C @common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class C @common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope S
sasl.oauthbearer.scope.claim.name S scope
sasl.oauthbearer.token.endpoint.url S
sasl.server.callback.handler.class C
security.providers S
share.coordinator.append.linger.ms I -1
share.coordinator.cached.buffer.max.bytes I 1048588
share.coordinator.state.topic.compression.codec I 0
share.coordinator.threads I 1
share.fetch.purgatory.purge.interval.requests I 1000
socket.connection.setup.timeout.max.ms L 30000
socket.connection.setup.timeout.ms L 10000
ssl.engine.factory.class C
ssl.keymanager.algorithm S SunX509
ssl.protocol S TLSv1.3
ssl.provider S
ssl.secure.random.implementation S
ssl.trustmanager.algorithm S PKIX
transaction.partition.verification.enable B true
"""


_ONE_WORKER = (
    "Not applicable: one worker process copies and expires, so that a broker's copies share their commits "
    "and leave its cores to clients."
)
_BUILT_IN = "Not applicable: the tier is built in; its tables are Delta tables (lake.uri)."
_REASONS = {
    "sasl.jaas.config": (
        "Not applicable: set it per listener and mechanism, as "
        "`listener.name.<listener>.<mechanism>.sasl.jaas.config`."
    ),
    "remote.log.manager.copier.thread.pool.size": _ONE_WORKER,
    "remote.log.manager.expiration.thread.pool.size": _ONE_WORKER,
    "remote.log.manager.follower.thread.pool.size": (
        "Not applicable: followers ask each leader once for the remote state of all partitions, in the event loop."
    ),
    "remote.log.manager.thread.pool.size": _ONE_WORKER,
    "remote.log.metadata.custom.metadata.max.bytes": (
        "Not applicable: there are no plug-ins, so there is no custom metadata."
    ),
    "remote.log.metadata.manager.class.name": _BUILT_IN,
    "remote.log.metadata.manager.class.path": _BUILT_IN,
    "remote.log.metadata.manager.impl.prefix": _BUILT_IN,
    "remote.log.metadata.manager.listener.name": (
        "Not applicable: the tier's metadata is a table in the lake; no listener serves it."
    ),
    "remote.log.storage.manager.class.name": _BUILT_IN,
    "remote.log.storage.manager.class.path": _BUILT_IN,
    "remote.log.storage.manager.impl.prefix": _BUILT_IN,
}


def reasons() -> Mapping[str, str]:
    """Why some settings will never be supported."""
    return _REASONS


def unserved_names() -> tuple[str, ...]:
    """The names of all unsupported settings, sorted."""
    return tuple(_rows())


def unserved_setting(name: str) -> Setting | None:
    """The declaration of an unsupported setting, which accepts only its default."""
    row = _rows().get(name)
    if row is None:
        return None
    kind, default = row
    bare = Setting(name=name, kind=kind, default=None, says="")
    value: SettingValue = (
        bare.parse(default) if default else () if kind is ConfigType.LIST else None
    )
    return Setting(
        name=name,
        kind=kind,
        default=value,
        says=_REASONS.get(name, "Not honoured yet."),
        honours=(bare.text(value) or "",),
    )


@cache
def _rows() -> dict[str, tuple[ConfigType, str]]:
    found: dict[str, tuple[ConfigType, str]] = {}
    for line in _TABLE.replace("@", "org.apache.kafka.").strip().splitlines():
        name, kind, *default = line.split(" ")
        found[name] = (_KINDS[kind], "".join(default))
    return found
