"""The simulation notices a missing rule: few seeds catch each mutation, except those in `UNSEEN`."""

from __future__ import annotations

import pytest

from tests.sim import shapes
from tests.sim.mutation_runs import is_caught
from tests.sim.mutations import MUTATIONS

# The family that catches each mutation, and in how many seeds at most. More than needed today: every change
# to the order of events changes which seed catches it.
QUICK = {
    "high_watermark_over_nobody_else": ("machines", 10),
    "acknowledged_before_it_is_committed": ("machines", 10),
    "shrinking_before_the_controller_knows": ("machines", 60),
    "any_replica_may_lead": ("machines", 60),
    "full_disks_count_as_failed": ("outages", 20),
    "heartbeats_wait_for_the_lake": ("outages", 10),
    "what_a_lost_disk_forgot_is_not_asked": ("machines", 60),
    "crashed_brokers_lead_at_once": ("machines", 20),
    "followers_join_before_they_have_all": ("laggards", 40),
    "older_proposals_are_taken": ("repeats", 25),
    "no_version_check": ("machines", 5),
    "sequences_do_not_matter": ("machines", 10),
    "consumers_read_to_the_log_end": ("machines", 30),
    "aborted_records_are_forgotten": ("transactions", 5),
    "open_transactions_are_read": ("transactions", 10),
    "commits_of_any_generation_count": ("groups", 20),
    "offsets_of_aborted_transactions_count": ("groups", 5),
}
SLOW = {
    "groups_do_not_wait_for_replicas": ("groups", 40),
    "unstable_offsets_are_told": ("groups", 40),
    "no_truncation": ("leftovers", 3),
    "leaders_see_no_divergence": ("zombies", 60),
    "min_insync_replicas_are_ignored": ("machines", 120),
}
# The mutations that no family was seen to catch, and the test that does.
UNSEEN = {
    "followers_join_at_the_high_watermark": "tests/unit/replica/test_isr.py",
}


@pytest.mark.parametrize("name", QUICK)
def test_a_missing_rule_is_seen(name: str) -> None:
    assert is_caught(MUTATIONS[name], *QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_missing_rule_is_seen_at_length(name: str) -> None:
    assert is_caught(MUTATIONS[name], *SLOW[name])


def test_each_mutation_is_looked_for_or_said_not_to_be_seen() -> None:
    assert sorted([*QUICK, *SLOW, *UNSEEN]) == sorted(MUTATIONS)


@pytest.mark.parametrize("fails_with_the_rule", [True, False])
def test_a_seed_that_fails_anyway_catches_nothing(
    monkeypatch: pytest.MonkeyPatch, *, fails_with_the_rule: bool
) -> None:
    runs: list[tuple[str, int]] = []

    def run(family: str, seed: int) -> None:
        runs.append((family, seed))
        assert not fails_with_the_rule and len(runs) != 2, "what a checker has seen"

    monkeypatch.setattr(shapes, "run", run)
    mutation = MUTATIONS[next(iter(QUICK))]
    if fails_with_the_rule:
        with pytest.raises(AssertionError, match="what a checker has seen"):
            is_caught(mutation, "machines", 3)
    else:
        assert is_caught(mutation, "machines", 3)
        assert runs == [("machines", 0), ("machines", 1), ("machines", 1)]
