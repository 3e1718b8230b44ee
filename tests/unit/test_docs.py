"""Generated pages say what the code says."""

from dataclasses import replace
from pathlib import Path

from broker import protocol_doc
from kafka_ds.sink.options import SINK_OPTIONS, parse_sink_options
from kafka_ds.source import options_doc
from kafka_ds.source.options import OPTIONS, parse_options

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_protocol_table_is_what_the_registry_serves() -> None:
    assert (DOCS / "protocol.md").read_text() == protocol_doc.render(), (
        "run: .venv/bin/python -m broker.protocol_doc > docs/protocol.md"
    )


def test_the_options_of_the_source_are_all_described() -> None:
    page = (DOCS / "spark.md").read_text()
    head, mark, _ = page.partition(options_doc.MARK)
    assert page == head + options_doc.render(), f"what follows {mark!r} is not what the code says"


def test_each_option_has_an_example_that_is_accepted() -> None:
    assert options_doc.EXAMPLES.keys() == OPTIONS.keys() | SINK_OPTIONS.keys()
    for name, value in options_doc.EXAMPLES.items():
        given = {"kafka.bootstrap.servers": "broker:9092", name: value}
        if name in SINK_OPTIONS:
            parse_sink_options({"checkpointLocation": "/checkpoint", **given}, stream=True)
        elif value:
            if name not in ("subscribe", "subscribePattern", "assign"):
                given["subscribe"] = "orders"
            parse_options(given)


def test_each_default_is_what_holds_without_the_option() -> None:
    servers = {"kafka.bootstrap.servers": "broker:9092"}
    for name, pair in options_doc.DEFAULTS.items():
        for value, stream in zip(pair, (False, True), strict=True):
            if value and name in SINK_OPTIONS:
                given = {**servers, "checkpointLocation": "/checkpoint"} if stream else servers
                written = parse_sink_options({**given, name: value}, stream=stream)
                assert written == parse_sink_options(given, stream=stream), name
            elif value:
                given = {**servers, "subscribe": "orders"}
                read = parse_options({**given, name: value}, stream=stream)
                assert replace(read, ignored=()) == parse_options(given, stream=stream), name
