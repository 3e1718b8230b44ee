"""What suites.toml says of clients' own suites holds together; `make client-suites` runs the suites themselves."""

from datetime import date

import pytest

from tests.clients.suites.__main__ import main
from tests.clients.suites.allowances import Suite, suites
from tests.clients.suites.running import RUN, Outcome, each_of


@pytest.mark.parametrize("suite", suites().values(), ids=lambda suite: suite.name)
def test_what_is_said_of_a_suite_holds_together(suite: Suite) -> None:
    assert suite.name in RUN and suite.tag.startswith("v")
    assert len(set(suite.tests)) == len(suite.tests)
    failing = [test for each in suite.failing for test in each.tests]
    left_out = [test for each in suite.left_out for test in each.tests]
    assert set(failing) <= set(suite.tests) and not set(left_out) & set(suite.tests)
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
