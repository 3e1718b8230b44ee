"""Pure: the option `where`: a small SQL predicate, parsed into a `Predicate`.

An AND of comparisons, IN, BETWEEN and IS NOT NULL over partition, offset, timestamp, leader_epoch and topic; of the key
only equality and IN. Everything else is an error that names the option and the place, because a predicate that is half
understood would silently return other rows. Spark pushes nothing down to a Python stream; this option does. A time is
written with its zone, because planning does not know the session's zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Final, NoReturn

from kafka_ds.errors import OptionError
from kafka_ds.source.filters import predicate as p
from kafka_ds.source.filters.predicate import Condition, Predicate
from kafka_ds.source.filters.pushdown import microseconds

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>-?\d+)|[xX]'(?P<bytes>(?:[0-9a-fA-F]{2})*)'|'(?P<text>(?:[^']|'')*)'|(?P<word>[A-Za-z_][A-Za-z0-9_]*|`[^`]*`)"
    r"|(?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,))"
)
_COMPARISONS: Final = {
    "=": p.EQUAL, "==": p.EQUAL, "<>": p.NOT_EQUAL, "!=": p.NOT_EQUAL, "<": p.LESS, "<=": p.LESS_OR_EQUAL,
    ">": p.GREATER, ">=": p.GREATER_OR_EQUAL,
}  # fmt: skip
_MIRRORED: Final = {
    p.LESS: p.GREATER, p.LESS_OR_EQUAL: p.GREATER_OR_EQUAL, p.GREATER: p.LESS, p.GREATER_OR_EQUAL: p.LESS_OR_EQUAL,
}  # fmt: skip
CONDITIONS_MAX: Final = 1000


def parse_where(text: str) -> Predicate:
    """The predicate that the text spells."""
    parser = _Parser(text)
    found = Predicate()
    for condition in parser.conditions():
        narrowed = found.narrowed(condition)
        if narrowed is None:
            raise OptionError(
                f"option 'where': {condition.column} cannot be compared by {condition.operator!r}"
            )
        found = narrowed
    return found


class _Parser:
    """Recursive descent over the tokens; every method leaves the position behind what it read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        self._position = 0
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise OptionError(f"option 'where': cannot read {text[at:].strip()[:40]!r}")
            kind = str(match.lastgroup)
            self._tokens.append((kind, match.group(kind), match.start(kind)))
            at = match.end()

    def conditions(self) -> list[Condition]:
        found = self._condition()
        while self._position < len(self._tokens):
            if not self._word("and"):
                self._fail("AND is all that may join conditions")
            found += self._condition()
            if len(found) > CONDITIONS_MAX:
                self._fail(f"more than {CONDITIONS_MAX} conditions")
        return found

    def _condition(self) -> list[Condition]:
        if self._sign("("):
            found = self._condition()
            while self._word("and"):
                found += self._condition()
            if not self._sign(")"):
                self._fail("a parenthesis is not closed, or OR was meant, which is not pushed down")
            return found
        if self._kind() != "word" or self._is_literal():
            return [self._mirrored()]
        column = self._column()
        negated = self._word("not")
        if self._word("in"):
            operator = p.NOT_IN if negated else p.IN
            return [Condition(column=column, operator=operator, values=self._list(column))]
        if self._word("between") and not negated:
            return self._between(column)
        if negated:
            self._fail("NOT is understood before IN only")
        if self._word("is"):
            if not (self._word("not") and self._word("null")):
                self._fail("IS NOT NULL is all that is understood after IS")
            return [Condition(column=column, operator=p.NOT_NULL)]
        operator = self._comparison()
        return [Condition(column=column, operator=operator, values=(self._literal(column),))]

    def _mirrored(self) -> Condition:
        """A literal on the left: ``10 < offset``."""
        start = self._position
        while self._kind() in ("number", "text", "bytes", "word") and self._kind(1) != "end":
            self._position += 1
        operator = self._comparison()
        column = self._column()
        end, self._position = self._position, start
        value = self._literal(column)
        self._position = end
        return Condition(column=column, operator=_MIRRORED.get(operator, operator), values=(value,))

    def _between(self, column: str) -> list[Condition]:
        low = self._literal(column)
        if not self._word("and"):
            self._fail("BETWEEN needs AND")
        high = self._literal(column)
        return [
            Condition(column=column, operator=p.GREATER_OR_EQUAL, values=(low,)),
            Condition(column=column, operator=p.LESS_OR_EQUAL, values=(high,)),
        ]

    def _list(self, column: str) -> tuple[int | str | bytes, ...]:
        if not self._sign("("):
            self._fail("IN needs a list")
        values = [self._literal(column)]
        while self._sign(","):
            values.append(self._literal(column))
        if not self._sign(")"):
            self._fail("the list of IN is not closed")
        return tuple(values)

    def _column(self) -> str:
        kind, text = self._next_token()
        name = text.strip("`").lower()
        if kind != "word" or name not in p.COLUMNS:
            self._position -= 1
            self._fail(f"only {', '.join(p.COLUMNS)} are pushed down")
        return name

    def _comparison(self) -> str:
        kind, text = self._next_token()
        if kind != "sign" or text not in _COMPARISONS:
            self._position -= 1
            self._fail("a comparison was expected")
        return _COMPARISONS[text]

    def _literal(self, column: str) -> int | str | bytes:
        if column == p.TIMESTAMP:
            self._word("timestamp")
        kind, text = self._next_token()
        if column == p.TIMESTAMP and kind == "text":
            return self._moment(text)
        if column == p.TOPIC and kind == "text":
            return text.replace("''", "'")
        if column == p.KEY and kind in ("text", "bytes"):
            return bytes.fromhex(text) if kind == "bytes" else text.replace("''", "'").encode()
        if column in p.NUMBERS and column != p.TIMESTAMP and kind == "number":
            return int(text)
        self._position -= 1
        if column == p.TIMESTAMP:
            self._fail("a time such as TIMESTAMP '2013-01-01 00:00:00Z' was expected")
        terms = {p.TOPIC: "text", p.KEY: "text or bytes such as X'6b31'"}
        self._fail(f"{column} is compared with {terms.get(column, 'whole numbers')}")

    def _moment(self, text: str) -> int:
        try:
            moment = datetime.fromisoformat(re.sub(r"\s+([+-])", r"\1", text.strip()))
        except ValueError:
            self._position -= 1
            self._fail("not a time in the form of ISO 8601")
        if moment.tzinfo is None:
            self._position -= 1
            self._fail("the time needs its zone, as in '2013-01-01 00:00:00Z' or '… +01:00'")
        return microseconds(moment)

    def _is_literal(self) -> bool:
        """Whether the word ahead opens a typed literal (TIMESTAMP '…') rather than naming a column."""
        return self._tokens[self._position][1].lower() == p.TIMESTAMP and self._kind(1) == "text"

    def _kind(self, ahead: int = 0) -> str:
        at = self._position + ahead
        return self._tokens[at][0] if at < len(self._tokens) else "end"

    def _next_token(self) -> tuple[str, str]:
        if self._position >= len(self._tokens):
            self._fail("it ends too early")
        kind, text, _ = self._tokens[self._position]
        self._position += 1
        return kind, text

    def _word(self, word: str) -> bool:
        return self._accept("word", lambda text: text.lower() == word)

    def _sign(self, sign: str) -> bool:
        return self._accept("sign", lambda text: text == sign)

    def _accept(self, kind: str, matches: Callable[[str], bool]) -> bool:
        if self._kind() == kind and matches(self._tokens[self._position][1]):
            self._position += 1
            return True
        return False

    def _fail(self, reason: str) -> NoReturn:
        if self._position < len(self._tokens):
            at = self._tokens[self._position][2]
            raise OptionError(f"option 'where': {reason}; at {self._text[at:][:40]!r}")
        raise OptionError(f"option 'where': {reason}; at its end")
