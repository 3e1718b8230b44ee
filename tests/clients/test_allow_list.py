"""The list of what does not pass is true: it names tests that are there, dates, reasons and the versions installed."""

import re
from datetime import date
from importlib.metadata import version
from pathlib import Path

from tests.clients.allowances import left_out, not_passing, versions

FOLDER = Path(__file__).parent
REQUIREMENTS = FOLDER.parents[1] / "requirements.txt"


def test_the_clients_are_those_that_the_list_was_made_for() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE))
    assert len(versions()) == 3
    for client, expected in versions().items():
        assert version(client) == pinned[client] == expected


def test_what_does_not_pass_is_there_and_dated() -> None:
    for each in not_passing():
        file, _, name = each.test.partition("::")
        assert f"def {name}(" in (FOLDER / file).read_text(), each.test
        assert isinstance(each.since, date)
        assert each.reason


def test_what_is_left_out_says_of_which_client_and_why() -> None:
    for each in left_out():
        assert each["client"] in versions()
        assert isinstance(each["since"], date)
        assert each["tests"]
        assert each["reason"]
