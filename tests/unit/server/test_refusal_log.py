"""A client that tries again and again with the wrong protocol is a line a minute, not one for each try."""

import pytest

from broker.server.refusal_log import INTERVAL_S, REASONS_MAX, RefusalLog


def test_what_an_address_does_again_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = 0.0
    refusals = RefusalLog(lambda: now)
    for port in range(24):
        refusals.closing("10.0.0.1", f"10.0.0.1:{port}", "no TLS")
    refusals.closing("10.0.0.1", "10.0.0.1:99", "another")
    refusals.closing("10.0.0.2", "10.0.0.2:1", "no TLS")
    now = INTERVAL_S
    refusals.closing("10.0.0.1", "10.0.0.1:30", "no TLS")
    now = 2 * INTERVAL_S
    refusals.closing("10.0.0.1", "10.0.0.1:31", "no TLS")
    assert caplog.messages == [
        "closing 10.0.0.1:0: no TLS",
        "closing 10.0.0.1:99: another",
        "closing 10.0.0.2:1: no TLS",
        "closing 10.0.0.1:30: no TLS (and 23 connections of this address before)",
        "closing 10.0.0.1:31: no TLS",
    ]


def test_what_is_remembered_is_bounded() -> None:
    refusals = RefusalLog(lambda: 0.0)
    for number in range(REASONS_MAX + 1):
        refusals.closing("h", "h:1", str(number))
    assert len(refusals) == REASONS_MAX


def test_what_is_forgotten_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = 0.0
    refusals = RefusalLog(lambda: now)
    for number in range(REASONS_MAX):
        refusals.closing("h", "h:1", str(number))
    now = INTERVAL_S
    # The first pair is logged again: the second one is now the oldest.
    for why in ("0", "1", "1", "1"):
        refusals.closing("h", "h:1", why)
    for number in range(2, REASONS_MAX):
        refusals.closing("h", "h:1", str(number))
    refusals.closing("h", "h:1", "a")
    refusals.closing("h", "h:1", "b")
    assert [each for each in caplog.messages if "closed" in each] == [
        "closed 2 more connections of h: 1"
    ]
