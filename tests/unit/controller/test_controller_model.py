"""The controller on the lake is safe in every interleaving, and each of its rules is needed for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.controller.controller_model import Bounds, Model, Rules, Violation

RULES = Rules()


SMALL = Bounds(versions=2, commits_each=2)


def test_no_interleaving_breaks_a_promise() -> None:
    assert Model(RULES, SMALL).explore() > 150_000


@pytest.mark.slow
def test_no_longer_interleaving_does() -> None:
    """About 4 million states, 7 minutes; with dropped answers three commits each would be too many states."""
    assert Model(RULES, Bounds(drops=False)).explore() > 1_000_000
    assert Model(RULES, Bounds(commits_each=2)).explore() > 150_000


@pytest.mark.parametrize(
    "rules",
    [
        replace(RULES, put_if_absent=False),
        replace(RULES, reads_back=False),
        replace(RULES, unknown_is_retried=False),
        replace(RULES, ends_at_events=False),
        replace(RULES, lists_when_late=False),
        replace(RULES, claims_count_up=False),
        replace(RULES, commits_on_what_it_decided_on=False),
    ],
    ids=lambda rules: next(n for n in Rules.__slots__ if not getattr(rules, n)),
)
def test_without_a_rule_a_promise_breaks(rules: Rules) -> None:
    with pytest.raises(Violation):
        Model(rules, SMALL).explore()
