"""Diskless topics under faults: what was acknowledged is in the lake; runs notice a missing rule."""

from __future__ import annotations

import pytest

from tests.model_runs import examples
from tests.sim import shapes
from tests.sim.diskless_mutations import MUTATIONS
from tests.sim.mutation_runs import is_caught

# How many seeds of each family CI runs; `make sim` runs many.
SEEDS = {
    "diskless": examples(3),
    "sleepers": examples(1),
    "to_diskless": examples(1),
    "both_ways": examples(1),
}
# The family that catches each missing rule, and in how many seeds at most.
QUICK = {
    "acknowledged_before_it_is_put": ("diskless", 4),
}
SLOW = {
    "former_leaders_are_not_fenced": ("sleepers", 5),
    "fences_are_erased": ("sleepers", 5),
    "objects_are_erased_before_they_are_copied": ("diskless", 5),
    "what_is_taken_over_is_not_put_again": ("diskless", 5),
    "logs_of_former_leaders_are_forgotten": ("diskless", 5),
    "a_log_start_is_not_put": ("diskless", 5),
    "diskless_before_it_is_put": ("to_diskless", 3),
    "a_leader_that_has_asked_appends": ("to_diskless", 16),
    "what_a_commit_may_name_is_erased": ("to_diskless", 16),
    "replicated_before_the_table_has_everything": ("both_ways", 5),
    "refusals_are_silent": ("both_ways", 12),
    "a_leader_that_has_asked_for_followers_appends": ("both_ways", 12),
}
MODEL = "tests/unit/diskless/test_wal_model.py"
# The mutations that no family is sure to catch, and the tests that do.
UNSEEN = {
    # Several puts have to be on their way, one of them for seconds, while another broker takes over.
    "acknowledged_out_of_order": MODEL,
    "fences_stand_behind_everything": MODEL,
    # A log that is not cleaned up shows it, which proves nothing.
    "the_newest_objects_are_erased": MODEL,
    # What lay behind a gap has to come back when its log is named again.
    "what_was_left_out_counts_again": MODEL,
    # The leader asks the table for other reasons a moment later.
    "log_starts_are_not_taken_over": "tests/unit/replica/test_diskless.py",
    # A former leader copies only what was acknowledged. It would have to copy it and to erase the objects within the
    # milliseconds between two steps of its successor.
    "the_table_is_not_fenced": "tests/unit/replica/test_diskless.py",
    # Mostly the table has it, for a partition begins to switch when its leader has just asked the lake.
    "a_log_start_is_not_waited_for": "tests/unit/replica/test_diskless_switch.py",
}


@pytest.mark.parametrize(
    ("family", "seed"), [(family, seed) for family, count in SEEDS.items() for seed in range(count)]
)
def test_an_acknowledged_record_is_in_the_lake(family: str, seed: int) -> None:
    shapes.run(family, seed)


@pytest.mark.parametrize("name", QUICK)
def test_a_missing_rule_is_seen(name: str) -> None:
    assert is_caught(MUTATIONS[name], *QUICK[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SLOW)
def test_a_missing_rule_is_seen_at_length(name: str) -> None:
    assert is_caught(MUTATIONS[name], *SLOW[name])


def test_each_mutation_is_looked_for_or_said_not_to_be_seen() -> None:
    assert sorted([*QUICK, *SLOW, *UNSEEN]) == sorted(MUTATIONS)
