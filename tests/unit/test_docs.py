"""Generated pages say what the code says."""

from pathlib import Path

from broker import protocol_doc

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_protocol_table_is_what_the_registry_serves() -> None:
    assert (DOCS / "protocol.md").read_text() == protocol_doc.render(), (
        "run: .venv/bin/python -m broker.protocol_doc > docs/protocol.md"
    )
