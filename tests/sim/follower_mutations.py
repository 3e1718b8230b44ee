"""Mutations of read replicas over a copy: each removes one rule. `test_followers.py` shows which runs notice that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kafka_ds.delta.arrivals import ArrivedCommit, commit_of
from kafka_ds.delta.arrived_store import ArrivedTable
from tests.sim.mutations import Mutation, registry

MUTATIONS: dict[str, Mutation] = {}
mutation = registry(MUTATIONS)
NO_END = 1 << 62


@mutation
def the_copy_is_read_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """The newest commit counts, as in the lake itself."""
    patch.setattr(ArrivedTable, "shows", lambda self, version: True)
    patch.setattr(ArrivedTable, "shown", lambda self: range(NO_END))


@mutation
def files_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A version counts as soon as the log is there up to it."""
    patch.setattr(ArrivedTable, "_is_there", lambda self, file: True)
    patch.setattr(ArrivedTable, "_is_listed", lambda self, there, file: True)


@mutation
def gaps_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    """Version 12 counts before version 11 has come."""

    def whatever_is_there(self: Any, version: int) -> Iterator[ArrivedCommit]:
        for each in self._log.listing().commits:
            actions = self._log.read_version(each) if each > version else None
            if actions is not None:
                yield commit_of(self._name, each, actions)

    patch.setattr(ArrivedTable, "_commits_after", whatever_is_there)
