"""The simulation sees a rule that is missing: each mutation is caught within few seeds."""

from __future__ import annotations

import pytest

from tests.sim.mutations import MUTATIONS
from tests.sim.shapes import run

# Where each is looked for, and in how many seeds at most. More than it takes today: which seed it is
# changes with everything that changes the order of events.
QUICK = {
    "high_watermark_over_nobody_else": ("machines", 10),
    "acknowledged_before_it_is_committed": ("machines", 10),
    "shrinking_before_the_controller_knows": ("machines", 60),
    "any_replica_may_lead": ("machines", 60),
    "what_a_lost_disk_forgot_is_not_asked": ("machines", 20),
    "crashed_brokers_lead_at_once": ("machines", 20),
    "followers_join_before_they_have_all": ("laggards", 40),
    "older_proposals_are_taken": ("repeats", 25),
    "no_version_check": ("machines", 5),
    "sequences_do_not_matter": ("machines", 10),
    "consumers_read_to_the_log_end": ("machines", 10),
    "aborted_records_are_forgotten": ("transactions", 5),
    "open_transactions_are_read": ("transactions", 10),
    "commits_of_any_generation_count": ("groups", 20),
    "offsets_of_aborted_transactions_count": ("groups", 5),
}
SLOW = {
    "groups_do_not_wait_for_replicas": ("groups", 40),
    "unstable_offsets_are_told": ("groups", 40),
    "no_truncation": ("machines", 10),
    "leaders_see_no_divergence": ("zombies", 60),
    "min_insync_replicas_are_ignored": ("machines", 120),
}


def is_caught(name: str, family: str, seeds: int, patch: pytest.MonkeyPatch) -> bool:
    """Whether one of the seeds fails without the rule."""
    MUTATIONS[name](patch)
    for seed in range(seeds):
        try:
            run(family, seed)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("name", QUICK)
def test_a_missing_rule_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_caught(name, *QUICK[name], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_missing_rule_is_seen_at_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_caught(name, *SLOW[name], monkeypatch)
