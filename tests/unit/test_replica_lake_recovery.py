"""Whether a log that extends beyond the lake's end diverges from the lake below it."""

from types import SimpleNamespace
from typing import Any

import pytest

from broker.log.ending import Ending
from broker.log.epochs import LeaderEpochs
from broker.replica.lake_recovery import _parts

LAKE_END = 35


@pytest.mark.parametrize(
    ("epochs", "log_start", "has_parted"),
    [
        ([(0, 0)], 0, True),
        ([(0, 0), (1, 20)], 0, False),
        ([(0, 0), (1, 20), (2, 30)], 0, True),
        # Its log start lies behind the lake's end: DeleteRecords, or a topic that was no table for a while.
        ([(0, 0), (1, 20)], 36, False),
        ([(0, 0), (1, 20), (2, 40)], 50, False),
        ([(0, 0)], 36, True),
        ([], 0, True),
    ],
)
def test_a_log_parts_from_the_lake_by_the_epoch_at_its_end(
    epochs: list[tuple[int, int]], log_start: int, *, has_parted: bool
) -> None:
    known = LeaderEpochs()
    for epoch, start in epochs:
        known.assign(epoch, start)
    known.truncate_from_start(log_start)
    log: Any = SimpleNamespace(name="t-0", leader_epochs=known)
    ended = Ending(producer_snapshot=b"", leader_epochs=((0, 0), (1, 20)))
    assert _parts(log, LAKE_END, ended) is has_parted
