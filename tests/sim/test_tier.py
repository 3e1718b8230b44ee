"""Each committed record comes into its table once, and goes when it may, under faults; and what that is worth."""

from __future__ import annotations

import pytest

from tests.model_runs import examples
from tests.sim import shapes
from tests.sim.test_mutations import is_caught
from tests.sim.tier_mutations import MUTATIONS

# What CI runs of each family; `make sim` runs many.
SEEDS = {"tier": examples(1), "reckless": examples(1), "switches": examples(1)}
# Where each rule is missed, and in how many seeds at most.
QUICK = {
    "local_segments_go_before_they_are_finished": ("tier", 3),
}
SLOW = {
    "a_lost_answer_is_no_commit": ("tier", 20),
    "open_transactions_are_copied": ("tier", 40),
    "the_newest_range_is_copied_first": ("tier", 10),
    "topic_ids_do_not_matter": ("tier", 20),
    "rows_go_before_the_log_start_has_moved": ("tier", 20),
    "the_log_begins_later_before_the_lake_knows": ("tier", 10),
    "files_go_that_hold_later_records_too": ("tier", 10),
    "retention_takes_one_range_too_many": ("tier", 40),
    "the_lake_does_not_hear_of_deleted_records": ("tier", 10),
    "attempts_that_may_yet_win_are_given_up": ("tier", 20),
    "a_topic_that_left_gives_nothing_up": ("switches", 60),
}
# Those that no family was seen to catch, and what sees the rule.
UNSEEN = {
    # Two of some seventy seeds end it as a run that does not come to rest, which is no proof.
    "a_range_is_committed_twice": "tests/unit/test_lake_topics.py, tests/integration/test_tier_faults.py",
    "leader_epochs_fence_nobody": "tests/integration/test_tier_faults.py",
    # A broker must die between its removes and its word that they are done, and nothing may be due there ever after.
    "deletions_of_the_dead_are_left_to_them": "tests/integration/test_tier_sweeper.py",
    "files_below_that_nobody_finished_stay": "tests/unit/test_tier_expiring.py",
    # Who leads has gone on behind the lake where its log parts from it: no range contradicts it then.
    "other_histories_are_counted": "tests/unit/test_tier_expiration.py",
}


@pytest.mark.parametrize(
    ("family", "seed"), [(family, seed) for family, count in SEEDS.items() for seed in range(count)]
)
def test_each_record_is_in_the_table_once(family: str, seed: int) -> None:
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
