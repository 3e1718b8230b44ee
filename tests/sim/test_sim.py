"""Whole runs of a cluster under faults, each a function of its seed: `make sim SEEDS=n`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.model_runs import examples
from tests.sim.faults import Plan
from tests.sim.scenario import Scenario, Shape
from tests.sim.shapes import BRISK, BRISK_SCALE, run

# How many seeds of each family CI runs. The failure of a seed names the command that runs it again.
SEEDS = {
    "one_broker": examples(36),
    "machines": examples(120),
    "cluster": examples(16),
    "laggards": examples(20),
    "repeats": examples(14),
    "leftovers": examples(2),
    "lake": examples(66),
    "storeless": examples(6),
    "outages": examples(3),
    "groups": examples(14),
    "moves": examples(13),
    "coordinators": examples(1),
    "large": examples(0),
}


@pytest.mark.parametrize(
    ("family", "seed"), [(family, seed) for family, count in SEEDS.items() for seed in range(count)]
)
def test_seed(family: str, seed: int) -> None:
    run(family, seed)


@pytest.mark.parametrize(("family", "seed"), [("cluster", "1"), ("answers", "0")])
def test_a_seed_is_the_same_run_in_every_process(family: str, seed: str) -> None:
    """Neither the order of sets nor ids from the operating system influence a run."""
    told = set()
    # A set of the two topics of a run with the tier begins with either.
    for hash_seed in ("1", "3"):
        command = [sys.executable, "-m", "tests.sim", family, seed]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        told.add(
            next(line for line in done.stdout.splitlines() if line.startswith(f"{family} {seed}: "))
        )
    assert len(told) == 1


def test_a_broker_that_ends_itself_is_started_again() -> None:
    plan = Plan(kinds=("log_dir_fails",), every_seconds=1, scale=BRISK_SCALE)
    scenario = Scenario(0, Shape(transactional=0, seconds=12), plan, BRISK)
    scenario.run()
    told = [line.split(maxsplit=1)[1] for line in scenario.world.lines]
    during = told[: told.index("healed")]
    assert any(line.endswith(" ends itself") for line in during)
    assert any(line.endswith(" starts") for line in during)
