"""A bank: money moves between accounts of several topics while broker and tellers are killed and fenced.

Tellers (`bank_teller.py`) are processes of librdkafka: they read orders as members of one group, write a debit and a
credit for each, and send their offsets with the transaction. In the end each order was carried out exactly once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.bank import SETTINGS, Bank, run
from tests.model_runs import examples
from tests.processes import BrokerProcess

ACTIONS = (
    Bank.kill_the_broker,
    Bank.kill_a_teller,
    Bank.replace_a_teller,
    Bank.kill_the_broker_and_a_teller,
    Bank.a_teller_sleeps_on_its_entries,
    Bank.a_teller_sleeps_on_its_offsets,
)


def run_with_one(folder: Path, seed: int, rounds: int) -> None:
    """One broker, which is killed."""
    broker = BrokerProcess(folder, SETTINGS)
    run(Bank(folder, seed, broker), ACTIONS, rounds)
    assert "Traceback" not in broker.log_file.read_text()


def test_every_transfer_counts_once_whoever_dies(tmp_path: Path) -> None:
    run_with_one(tmp_path, seed=1, rounds=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 2 + examples(3)))
def test_every_transfer_counts_once_whoever_dies_often(tmp_path: Path, seed: int) -> None:
    run_with_one(tmp_path, seed, rounds=3)
