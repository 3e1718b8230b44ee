"""The checker finds what is planted, in histories and in brokers, and nothing in histories of a sound cluster."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checker import __main__ as program
from tests.checker import history
from tests.checker.analysis import judge
from tests.checker.history import Operation
from tests.checker.plants import PLANTS
from tests.checker.simulated import busy, record, scenario
from tests.sim.loop import LEFT_BEHIND
from tests.sim.mutations import MUTATIONS

CHECKER = ("history", "cycles", "analysis", "__main__")
SECONDS = 30
# The broker's rules whose absence clients see, and in how many seeds at most: more than needed today.
QUICK = {
    "aborted_records_are_forgotten": 3,
    "open_transactions_are_read": 3,
    "sequences_do_not_matter": 10,
}
SLOW = {
    "acknowledged_before_it_is_committed": 20,
    "any_replica_may_lead": 20,
    "consumers_read_to_the_log_end": 20,
    "crashed_brokers_lead_at_once": 20,
    "high_watermark_over_nobody_else": 20,
    "shrinking_before_the_controller_knows": 40,
    "what_a_lost_disk_forgot_is_not_asked": 20,
}
pytestmark = [pytest.mark.filterwarnings(each) for each in LEFT_BEHIND]


@pytest.fixture(scope="module")
def sound() -> Iterator[list[Operation]]:
    """The history of a cluster under faults."""
    found, problem = record(scenario(1, 4 * SECONDS))
    assert not problem
    yield found


def test_a_sound_history_has_no_finding(sound: list[Operation], tmp_path: Path) -> None:
    judgement = judge(sound)
    assert not judgement.findings
    assert judgement.figures["records certain"] > 40
    history.write(tmp_path / "sound", sound)
    assert history.read(tmp_path / "sound") == sound
    assert program.main([str(tmp_path / "sound")]) == 0


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_fault_is_found(kind: str, sound: list[Operation]) -> None:
    assert judge(PLANTS[kind](sound)).kinds[kind]


def is_seen(rule: str, seeds: int) -> bool:
    """Whether a history has a finding without the rule, and none with it."""
    for seed in range(seeds):
        with pytest.MonkeyPatch.context() as patch:
            MUTATIONS[rule](patch)
            without, _ = record(busy(seed, SECONDS))
        if judge(without).findings:
            return not judge(record(busy(seed, SECONDS))[0]).findings
    return False


@pytest.mark.parametrize("rule", QUICK)
def test_a_missing_rule_is_found(rule: str) -> None:
    assert is_seen(rule, QUICK[rule])


@pytest.mark.slow
@pytest.mark.parametrize("rule", SLOW)
def test_a_missing_rule_is_found_at_length(rule: str) -> None:
    assert is_seen(rule, SLOW[rule])


def test_findings_are_told(
    sound: list[Operation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.write(tmp_path / "bad", PLANTS["duplicate"](sound))
    assert program.main([str(tmp_path / "bad")]) == 1
    assert "duplicate: orders-" in capsys.readouterr().out


def test_the_checker_knows_nothing_of_the_broker() -> None:
    """Neither the product's code nor the simulation has a part in what it says."""
    for name in CHECKER:
        tree = ast.parse(Path(__file__).with_name(f"{name}.py").read_text())
        imported = {
            node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        }
        ours = {each for each in imported if each.startswith(("tests", "broker", "kafka_ds"))}
        known = {"tests.checker", *(f"tests.checker.{each}" for each in CHECKER)}
        assert ours <= known, name
