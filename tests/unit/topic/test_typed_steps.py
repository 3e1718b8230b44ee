from dataclasses import replace
from pathlib import Path

from kafka_ds.delta.actions import encode_actions
from kafka_ds.delta.log import DeltaLog
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.topic.typed_steps import TableStep, last_step

DONE = TableStep(number=4, topic_id="t", mode="append", start={0: 0, 1: 0}, end={0: 10, 1: 5})


def test_a_step_stands_in_its_commit() -> None:
    assert TableStep.parse(DONE.text()) == DONE
    for other in (
        None,
        "",
        "nightly load",
        "{}",
        "[]",
        '{"kafkaDs": 1}',
        '{"kafkaDs": {"offsets": []}}',
    ):
        assert TableStep.parse(other) is None


def test_commits_of_others_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "t" / "_delta_log"
    folder.mkdir(parents=True)
    for version, text in enumerate(('"first"', DONE.text(), None)):
        action = {"commitInfo": {"operation": "WRITE", "userMetadata": text}}
        (folder / f"{version:020d}.json").write_bytes(encode_actions([action]))
    log = DeltaLog(LocalStore(str(tmp_path)), "t")
    assert last_step(log) == DONE
    (folder / f"{1:020d}.json").unlink()
    assert last_step(log) is None


def test_a_vacuum_that_began_before_the_last_step_does_not_hide_it(tmp_path: Path) -> None:
    folder = tmp_path / "t" / "_delta_log"
    folder.mkdir(parents=True)
    next_one = replace(DONE, number=5)
    commits = (
        ("WRITE", DONE),
        ("WRITE", next_one),
        ("VACUUM START", DONE),
        ("VACUUM END", DONE),
    )
    for version, (operation, step) in enumerate(commits):
        action = {"commitInfo": {"operation": operation, "userMetadata": step.text()}}
        (folder / f"{version:020d}.json").write_bytes(encode_actions([action]))
    log = DeltaLog(LocalStore(str(tmp_path)), "t")
    assert last_step(log) == last_step(log, of_vacuum=False) == next_one
    for version in (0, 1):
        (folder / f"{version:020d}.json").unlink()
    assert last_step(log) == DONE
    assert last_step(log, of_vacuum=False) is None
