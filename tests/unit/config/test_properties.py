"""Properties files: the syntax of java.util.Properties, as Java 17 reads it."""

import pytest

from broker.config.properties import PropertiesError, parse_properties

TEXT = r"""# comment
! another
a=1
b = 2
c : 3
d 4
  e=indented
f=one, \
   two, \
   three
g\ h=key with a blank
i\=j=k
l=\u00e9\t\n\\
m
n=
o==p
q:=r
s = t # no comment
u=v\
w=x
path=C:\\tmp
x=first
x=second
    \
  y=joined
"""


def parsed(text: str) -> dict[str, str]:
    return {p.key: p.value for p in parse_properties(text)}


def test_the_syntax_of_java() -> None:
    assert parsed(TEXT) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "4",
        "e": "indented",
        "f": "one, two, three",
        "g h": "key with a blank",
        "i=j": "k",
        "l": "é\t\n\\",
        "m": "",
        "n": "",
        "o": "=p",
        "q": "=r",
        "s": "t # no comment",
        "u": "vw=x",
        "path": "C:\\tmp",
        "x": "second",
        "y": "joined",
    }


def test_lines_are_counted_from_the_first_of_a_property() -> None:
    text = "\n# c\r\na=1\\\n  2\rb=3"
    assert [(p.key, p.value, p.line) for p in parse_properties(text)] == [
        ("a", "12", 3),
        ("b", "3", 5),
    ]


def test_a_backslash_at_the_very_end_is_dropped() -> None:
    assert parsed("a=1\\") == {"a": "1"}
    assert parsed("a=1\\\\") == {"a": "1\\"}
    assert parsed("") == {}


def test_a_broken_escape_names_its_line() -> None:
    with pytest.raises(PropertiesError) as raised:
        list(parse_properties("a=1\nb=\\u00g0\n"))
    assert raised.value.line == 2
