"""What several tests use: is_caught."""

from __future__ import annotations

import pytest

from tests.sim import shapes
from tests.sim.mutations import Mutation


def is_caught(mutation: Mutation, family: str, seeds: int) -> bool:
    """Whether a seed fails without the rule; AssertionError if that seed fails with the rule, too."""
    for seed in range(seeds):
        try:
            with pytest.MonkeyPatch.context() as patch:
                mutation(patch)
                shapes.run(family, seed)
        except AssertionError:
            shapes.run(family, seed)
            return True
    return False
