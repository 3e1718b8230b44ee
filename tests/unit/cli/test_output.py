"""What is printed: tables, sizes, progress."""

import time

import click
import pytest

from broker.cli.output import awaiting, bytes_text, cell, complain, print_table, progress, tracked


def test_columns_are_aligned_and_numbers_stand_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table([["a", 1, [1, 2]], ["long", 200, []]], ("NAME", "END OFFSET", "ISR"))
    assert capsys.readouterr().out.splitlines() == [
        "NAME  END OFFSET  ISR",
        "a              1  1,2",
        "long         200  -",
    ]


def test_cells_are_one_line() -> None:
    assert [cell(each) for each in (None, "", True, 1.5, b"\xff", "a\nb")] == [
        "-", "-", "yes", "1.5", "ff", "a\\nb",
    ]  # fmt: skip


def test_sizes_are_for_people() -> None:
    assert [bytes_text(each) for each in (None, 1024)] == ["-", "1.0 KiB"]


def test_progress_is_a_line_now_and_then_where_nobody_sees_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 1.0, 10.0, 12.0])
    monkeypatch.setattr("broker.cli.output.time.monotonic", lambda: next(times))
    with progress("produced", 100) as advance:
        for count in (10, 40, 50):
            advance(count)
    assert capsys.readouterr().err == "produced: 50 of 100 records, 5/s, 10 s left\n"


def test_what_is_done_to_many_things_is_tracked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 1.0, 11.0])
    monkeypatch.setattr("broker.cli.output.time.monotonic", lambda: next(times))
    assert list(tracked("adopting", "ab", unit="partitions")) == ["a", "b"]
    assert capsys.readouterr().err == "adopting: 2 of 2 partitions, 0/s, 0 s left\n"


def test_what_is_waited_for_is_said_and_a_mistake_goes_on_in_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cli.output.SILENT_SECONDS_MAX", 0.0)
    with awaiting("connecting to b:1"):
        time.sleep(0.2)
    assert capsys.readouterr().err == "kafka-ds: connecting to b:1 … done\n"
    with pytest.raises(click.ClickException), awaiting("connecting to b:1"):
        time.sleep(0.2)
        raise click.ClickException("")
    complain("no broker answers")
    complain("another")
    told = "kafka-ds: connecting to b:1 … no broker answers\nkafka-ds: another\n"
    assert capsys.readouterr().err == told
    monkeypatch.setattr("broker.cli.output.SILENT_SECONDS_MAX", 60.0)
    with awaiting("connecting to b:1"):
        pass
    assert capsys.readouterr().err == ""


def test_null_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([["-", None, ""], ["", "-", None]], ("a", "b", "c"), null="NULL")
    assert capsys.readouterr().out.splitlines() == ["a  b     c", "-  NULL", "   -     NULL"]
