"""Read replicas over a copy whose objects come in any order: what they serve; runs notice a missing rule."""

from __future__ import annotations

import pytest

from tests.model_runs import examples
from tests.sim import shapes
from tests.sim.follower_mutations import MUTATIONS
from tests.sim.mutation_runs import is_caught

# How many seeds CI runs; `make sim` runs many.
SEEDS = examples(2)
# In how many seeds at most each missing rule is seen.
QUICK = {"files_are_not_waited_for": 3}
SLOW = {
    "the_copy_is_read_as_it_is": 3,
    "gaps_are_passed_over": 5,
}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replicas_serve_a_prefix_and_in_the_end_everything(seed: int) -> None:
    shapes.run("followers", seed)


@pytest.mark.parametrize("name", QUICK)
def test_a_missing_rule_is_seen(name: str) -> None:
    assert is_caught(MUTATIONS[name], "followers", QUICK[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SLOW)
def test_a_missing_rule_is_seen_at_length(name: str) -> None:
    assert is_caught(MUTATIONS[name], "followers", SLOW[name])


def test_each_mutation_is_looked_for() -> None:
    assert sorted([*QUICK, *SLOW]) == sorted(MUTATIONS)
