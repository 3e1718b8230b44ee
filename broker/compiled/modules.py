"""Pure: the modules that are compiled: those on the way of a small request.

- mypyc makes no usable classes of dataclasses with slots (`broker.server.metrics`), nor of some that inherit from
  asyncio's (`broker.server.connection`): what it is given has none.
- What drives uvloop is left out: it does not always return what asyncio's annotations say, and compiled code insists.
- Two `except … as` of one function need two names, and `copy.copy` does not work. `make test-compiled` finds such.
"""

MODULES = (
    "broker.handlers.records.produce",
    "broker.log.log",
    "broker.log.own_batches",
    "broker.log.segment.segment",
    "broker.log.segments",
    "broker.log.validation",
    "broker.metrics.times",
    "broker.replica.leader.partition",
    "broker.replica.leader.state",
    "broker.replica.replicas",
    "broker.security.guard",
    "broker.server.dispatch",
    "broker.transport.writes",
    "kafka_ds.protocol.buffer_pool",
    "kafka_ds.protocol.codec",
    "kafka_ds.protocol.frame",
    "kafka_ds.protocol.frame_assembler",
    "kafka_ds.protocol.request_memory",
    "kafka_ds.protocol.varint",
    "kafka_ds.records.batch",
    "kafka_ds.records.crc",
    "kafka_ds.records.validation",
    "kafka_ds.segments.index",
    "kafka_ds.segments.producers",
)
