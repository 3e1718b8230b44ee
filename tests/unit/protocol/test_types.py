"""Declarations: what a class made of them can do, and ids as text."""

import pickle

import pytest

from kafka_ds.protocol.types import (
    NO_UUID,
    Versions,
    fields_of,
    i16,
    i32,
    message,
    message_info,
    string,
    struct,
    uuid_from_text,
    uuid_text,
    v,
    versions,
)


@struct
class Seat:
    row: i32
    letter: string | None = v("2+", nullable="2+", default=None)


@message(key=999, versions="1-3", flexible="3+")
class BookingRequest:
    """Give me these seats."""

    seats: list[Seat]
    names: list[string] = v("2+", default=[])
    notes: list[string] | None = v("2+", nullable="2+", default=[])
    price: i16 = v(default=7)


def test_fields_are_keyword_arguments_with_defaults() -> None:
    booking = BookingRequest(seats=[Seat(row=3)])
    assert (booking.names, booking.notes, booking.price) == ([], [], 7)
    assert booking.seats[0].letter is None


def test_a_default_list_is_a_new_one_each_time_and_null_stays_null() -> None:
    first, second = BookingRequest(seats=[]), BookingRequest(seats=[], notes=None)
    first.names.append("Ada")
    assert second.names == [] and second.notes is None


def test_missing_and_unknown_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="seats"):
        BookingRequest()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="rows"):
        Seat(rows=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Seat(1)  # type: ignore[misc]


def test_there_are_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Seat(row=1).colour = "red"  # type: ignore[attr-defined]


def test_values_compare_print_and_travel_by_content() -> None:
    seat = Seat(row=3, letter="A")
    assert seat == Seat(row=3, letter="A") != Seat(row=3)
    assert seat != (3, "A")
    assert repr(seat) == "Seat(row=3, letter='A')"
    assert pickle.loads(pickle.dumps(seat)) == seat


def test_the_declaration_can_be_read_back() -> None:
    assert message_info(BookingRequest) == (999, Versions(1, 3), versions("3+"))
    assert [field.name for field in fields_of(BookingRequest)] == [
        "seats", "names", "notes", "price",
    ]  # fmt: skip
    assert BookingRequest.__doc__ == "Give me these seats."


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("4-18", {4, 18}, {3, 19}),
        ("5+", {5, 32767}, {4, -1}),
        ("3", {3}, {2, 4}),
        (None, set(), {0}),
    ],
)
def test_versions(text: str | None, inside: set[int], outside: set[int]) -> None:
    assert all(version in versions(text) for version in inside)
    assert not any(version in versions(text) for version in outside)


def test_ids_as_text() -> None:
    value = bytes(range(240, 256))
    assert uuid_text(value) == "8PHy8_T19vf4-fr7_P3-_w"
    assert uuid_from_text("8PHy8_T19vf4-fr7_P3-_w") == value
    assert uuid_text(NO_UUID) == "A" * 22


@pytest.mark.parametrize(
    "text", ["", "A" * 21, "A" * 23, "A" * 21 + "=", "A" * 21 + "B", "é" * 22, "A" * 20 + "+/"]
)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="not an id"):
        uuid_from_text(text)
