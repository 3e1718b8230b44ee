"""Shell: errors of the lake, and confining them to the partition or table that they concern."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker.worker.rpc import CONFLICT, FAILED
from kafka_ds.delta.commit import CommitError, Conflict
from kafka_ds.delta.log import ForeignTable

log = logging.getLogger(__name__)


class StorageError(Exception):
    """The store failed, and nothing of the request is visible: ask again."""


class FileMissing(StorageError):
    """A file that the table names is not in the store."""


class CommitLost(StorageError):
    """The commit's version is another writer's by now."""


class SegmentNotFound(Exception):
    """A local segment to be copied is missing, or is not the one in the request."""


class OffsetOutOfRange(Exception):
    """The storage does not hold the offset."""


# A request that meets one of these is repeated.
STORE_ERRORS = (StorageError, CommitError, Conflict, ForeignTable, OSError)


@contextmanager
def apart(failed: Callable[[str, str], None]) -> Iterator[None]:
    """Confine an error to one partition, or one table: the others go on.

    `failed` is called with the reason and the outcome: FAILED, or CONFLICT if an operator has to undo something.
    """
    try:
        yield
    except ForeignTable as error:
        failed(str(error), CONFLICT)
    except (SegmentNotFound, *STORE_ERRORS) as error:
        failed(str(error), FAILED)
    except Exception as error:
        log.exception("Unexpected error in one partition or table, going on with the others")
        failed(repr(error), FAILED)
