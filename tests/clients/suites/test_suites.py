"""What suites.toml says of clients' own suites holds together; `make suites` runs the suites themselves."""

from contextlib import nullcontext
from datetime import date
from pathlib import Path

import pytest

from tests.clients.suites import results
from tests.clients.suites.__main__ import main
from tests.clients.suites.allowances import Suite, suites
from tests.clients.suites.building import CannotBuild
from tests.clients.suites.junit import compiled_once
from tests.clients.suites.outcomes import Outcome, each_of
from tests.clients.suites.page import PAGE, page
from tests.clients.suites.results import Results, read
from tests.clients.suites.running import RUN, state_of_pytest


@pytest.mark.parametrize("suite", suites().values(), ids=lambda suite: suite.name)
def test_what_is_said_of_a_suite_holds_together(suite: Suite) -> None:
    assert suite.name in RUN and suite.source and suite.tag
    assert len(set(suite.tests)) == len(suite.tests)
    failing = [test for each in suite.failing for test in each.tests]
    left_out = [test for each in suite.left_out for test in each.tests]
    run = {_class_of(each) for each in suite.tests} if suite.by_class else set(suite.tests)
    known = {each.partition(".")[0] for each in failing} if suite.by_class else set(failing)
    assert known <= run and not set(left_out) & set(suite.tests)
    for each in (*suite.failing, *suite.left_out):
        assert each.tests and each.reason and isinstance(each.since, date)


def test_a_source_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["librdkafka", "--source", "/nowhere/at-all"]) == 2
    assert "/nowhere/at-all is no folder" in capsys.readouterr().err


def test_what_fails_is_tried_once_more_and_that_is_told() -> None:
    states = {"once": ["failed", "passed"], "never": ["failed", "failed"], "at once": ["passed"]}

    def run(test: str) -> Outcome:
        return Outcome(test=test, state=states[test].pop(0), printed="")

    found = [(each.test, each.state, each.tries) for each in each_of(run, list(states))]
    assert found == [("once", "passed", 2), ("never", "failed", 2), ("at once", "passed", 1)]


@pytest.mark.parametrize(
    ("last", "state"),
    [
        ("2 passed, 3 warnings in 8.00s\nDone!", "passed"),
        ("1 skipped in 0.10s", "skipped"),
        ("1 failed, 1 passed in 61.00s (0:01:01)", "failed"),
        ("1 passed, 1 error in 2.00s", "failed"),
        ("1 error in 0.10s", "failed"),
        ("ended after 600 s", "failed"),
    ],
)
def test_pytest_says_what_became_of_a_test(last: str, state: str) -> None:
    assert state_of_pytest(f"..\n{last}\n") == state


def test_what_was_compiled_against_other_jars_is_compiled_again(tmp_path: Path) -> None:
    source, lib, counted = tmp_path / "A.java", tmp_path / "lib", tmp_path / "counted"
    source.write_text("class A {}")
    lib.mkdir()

    def times(*more: str) -> int:
        words = ["sh", "-c", f"echo >> {counted}", *more, f"{lib}/*:other.jar"]
        compiled_once(tmp_path / "out", [source], [words])
        return counted.read_text().count("\n")

    (lib / "kafka-1.jar").touch()
    assert [times(), times(), times("-nowarn"), times("-nowarn")] == [1, 1, 2, 2]
    (lib / "kafka-1.jar").rename(lib / "kafka-2.jar")
    assert [times("-nowarn"), times("-nowarn")] == [3, 3]


def _class_of(test: str) -> str:
    return test.rpartition(".")[2]


def test_the_page_is_made_of_what_is_recorded() -> None:
    assert PAGE.read_text() == page(read(), suites())


def test_each_recorded_test_of_ours_is_as_suites_toml_says() -> None:
    recorded = read()
    assert recorded
    for name, suite in suites().items():
        here = recorded.get(name, Results()).here
        failed = {test for test, state in here.items() if state != "passed"}
        assert failed <= {test for each in suite.failing for test in each.tests}


def test_what_is_recorded_is_read_with_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(results, "FILE", tmp_path / "results.json")
    monkeypatch.setattr(results, "stamp", lambda: "2026-11-30T09:00 bbbbbbbb")
    results.FILE.write_text("{}")
    suite = suites()["kafka"]
    for test in ("ATest.a", suite.tests[0]):  # the latter a class whose tests did not begin
        results.record(suite, Outcome(test=test, state="passed", printed=""), "here")
    stamps = frozenset({"2026-11-30T09:00 bbbbbbbb"})
    assert read() == {"kafka": Results(here={"ATest.a": "passed"}, recorded=stamps)}


def test_a_page_counts_what_passed_on_both() -> None:
    suite = suites()["kafka"]
    recorded = {
        "kafka": Results(
            here={"ATest.a": "passed", "ATest.b": "failed", "BTest.c": "passed"},
            apache={"ATest.a": "passed", "ATest.b": "passed", "CTest.d": "passed"},
            recorded=frozenset({"2026-11-28T10:00 aaaaaaaa", "2026-11-30T09:00 bbbbbbbb"}),
        )
    }
    text = page(recorded, {"kafka": suite})
    counts = "4 | 3 of 3 | 2 of 3 | 33.3%"
    recorded_then = "2026-11-28 to 2026-11-30, bbbbbbbb"
    assert f"| Apache Kafka's clients | 4.3.1 | {counts} | {recorded_then} |" in text
    assert f"| all | | {counts} | |" in text
    assert "| `ATest` | 2 | 2 | 1 |" in text and "| `BTest` | 1 | – | 1 |" in text
    assert "| `CTest` | 1 | 1 | – |" in text and "`ATest.b`" in text


def test_where_all_pass_the_page_says_so() -> None:
    suite = suites()["franz-go"]
    text = page({"franz-go": Results(here={"TestPing": "passed"})}, {"franz-go": suite})
    assert text.endswith("## franz-go\n\nAll of them pass.\n")


def test_a_suite_that_cannot_be_run_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def built(suite: Suite, *_: object, **__: object) -> None:
        if suite.name == "sarama":
            raise CannotBuild("go is not installed\nat all")

    def run(*_: object) -> list[Outcome]:
        return [Outcome(test="RoundTripWorkload", state="passed", printed="")]

    monkeypatch.setattr("tests.clients.suites.__main__.built", built)
    monkeypatch.setattr(
        "tests.clients.suites.__main__.cluster_for", lambda *_, **__: nullcontext("brokers")
    )
    monkeypatch.setitem(RUN, "trogdor", run)
    assert main(["sarama", "trogdor"]) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [
        "sarama: not run: go is not installed",
        "trogdor: 1 passed, 0 not as expected",
    ]


def test_the_name_of_no_test_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.clients.suites.__main__.built", lambda *_, **__: None)
    monkeypatch.setattr(
        "tests.clients.suites.__main__.cluster_for", lambda *_, **__: nullcontext("brokers")
    )
    monkeypatch.setitem(RUN, "trogdor", lambda *_: [])
    assert main(["trogdor", "RoundTrip"]) == 2
    assert capsys.readouterr().out == "trogdor: not run: no test is called RoundTrip\n"
