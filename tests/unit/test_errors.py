"""What a user of source, sink and client sees is one family of errors, which one module names."""

from __future__ import annotations

import ast
from pathlib import Path

import kafka_ds
from kafka_ds.errors import KafkaDsError, OptionError
from kafka_ds.protocol.errors import ErrorCode, KafkaError

ROOT = Path(kafka_ds.__file__).parent
# They are caught where they are raised, or become an error of the family on their way.
INSIDE = {"SaslRefused", "ColumnError"}


def test_no_part_has_errors_of_its_own() -> None:
    raised = {
        node.name
        for part in ("client", "sink", "source")
        for path in (ROOT / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if any(str(getattr(base, "id", "")).endswith(("Error", "Exception")) for base in node.bases)
    }
    assert raised == INSIDE


def test_a_refusal_of_a_broker_and_a_wrong_option_are_of_the_family() -> None:
    assert isinstance(KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION), KafkaDsError)
    # A mistake in an option is a ValueError, as it ever was.
    assert issubclass(OptionError, KafkaDsError) and issubclass(OptionError, ValueError)
