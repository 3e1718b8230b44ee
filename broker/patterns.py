"""Pure: regular expressions that clients send, in Kafka's syntax, which is RE2's.

Whatever an expression says, it takes time in proportion to the text and a bounded memory. Python's own expressions may
take for ever, and a client must not be able to stop the broker with one.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from kafka_ds.protocol.errors import ErrorCode, KafkaError

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a text matches the expression from its beginning to its end; raises INVALID_REGULAR_EXPRESSION."""
    try:
        compiled = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        why = why.decode(errors="replace") if isinstance(why, bytes) else why
        message = f"{pattern!r} is not a regular expression: {why}"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None
    return lambda text: compiled.fullmatch(text) is not None
