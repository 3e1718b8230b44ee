"""Pure: what goes wrong for who uses the source, the sink or the client; all of it is a `KafkaDsError`.

A message names the option, broker, topic, partition or offsets concerned. What a retry may solve is retried before it
gets here: an error that a user sees is final for the attempt. `kafka_ds.protocol.errors.KafkaError`, a broker's refusal
by its code, is a `KafkaDsError`, too. Spark wraps what its Python processes raise in errors of its own, and keeps the
message.
"""

from __future__ import annotations


class KafkaDsError(Exception):
    """Something that a user of kafka-ds sees."""


class OptionError(KafkaDsError, ValueError):
    """An option or a column that is wrong, or cannot be honoured; the message names it."""


# -- between a client and the brokers -----------------------------------------------------------


class ClientError(KafkaDsError):
    """Something between us and the brokers; the message names the broker."""


class BrokerUnreachable(ClientError):
    """No connection, or one that ended: the request may or may not have been done."""


class NoSuchHost(BrokerUnreachable):
    """A broker's name that no name server has, nor did before in this process."""


class ConnectionRefused(BrokerUnreachable):
    """The machine at a broker's address refuses connections, and did since this process began."""


class AuthenticationRefused(ClientError):
    """The broker refuses the client's credentials, or the client the broker's certificate; not retried."""


class BrokerTimeout(ClientError):
    """An answer did not come in time; the message names the option with the timeout."""


class UnsupportedByBroker(ClientError):
    """A broker without a common version of a request."""


class TopicGone(ClientError):
    """A topic that is not there, or another one under its name; the message names both ids.

    ``position`` is the next offset of who was reading it.
    """

    def __init__(self, message: str, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class PlanDiverged(ClientError):
    """The log below the end of a pinned range was replaced (an unclean election): it must be planned again."""


class OffsetsGone(ClientError):
    """The leader's log, [log_start, log_end), does not hold the offset that is next."""

    def __init__(self, message: str, *, position: int, log_start: int, log_end: int) -> None:
        super().__init__(message)
        self.position = position
        self.log_start = log_start
        self.log_end = log_end


class NotDelivered(KafkaDsError):
    """A batch that no broker took; the message names topic, partition and rows."""


# -- reads --------------------------------------------------------------------------------------


class DataLoss(KafkaDsError):
    """Rows that a query asked for are gone; the message holds the exact ranges."""


class PlanGone(KafkaDsError):
    """Rows of a pinned plan are elsewhere by now (a file was removed, a log compacted): plan the query again."""


class CorruptBatch(KafkaDsError):
    """A batch in the log whose checksum, compression or records are broken; the message holds its offsets."""


class BadOffset(KafkaDsError, ValueError):
    """A stream offset that is not of this source; the message describes what is wrong with it."""


# -- writes -------------------------------------------------------------------------------------


class RowError(KafkaDsError, ValueError):
    """A row that cannot be a record; the message names it, and the column or option."""


class LoadUnfinished(KafkaDsError):
    """A bulk load has done its part, and whether the cluster has done its own is not known; the message says more."""


class PrefixConflict(KafkaDsError):
    """Another query writes under this transactional id prefix."""


class PrefixInUse(PrefixConflict):
    """The prefix is in use by another query (or by this one with a new checkpoint)."""


class CheckpointRolledBack(PrefixConflict):
    """A batch before the last one committed: the checkpoint was rolled back."""


class RunSuperseded(PrefixConflict):
    """Another run of the query has written since: of a copy of its checkpoint, or as this one was taken for dead."""


class CommitsLost(KafkaDsError):
    """Batches between the last one committed and this one: their commits were not restored with the topic."""


class BatchCommitUnfinished(KafkaDsError):
    """A committed batch whose records are gone before it was finished; the message names topic and offsets."""


class UnknownLayout(KafkaDsError, ValueError):
    """A commit record of a version of this package that is newer than this one."""
