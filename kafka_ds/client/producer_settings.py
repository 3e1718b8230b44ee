"""Pure: parses the `kafka.*` options of a producer; `client.settings` parses those of its connections.

Each setting is declared once, with Kafka's default except where a comment gives a reason. A setting that is not
supported is an error that names it. Settings of features that do not exist here are accepted. Idempotence is on unless
it is disabled, or other settings exclude it (KIP-679).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kafka_ds.client.settings import INT32_MAX, PREFIX, ClientSettings, parse_number, parse_settings
from kafka_ds.errors import OptionError
from kafka_ds.records.compression import Codec

__all__ = ["ALL", "ProducerSettings", "parse_producer_settings"]

ALL: Final = -1
# A broker remembers a producer's last five batches (KIP-98): it could not recognise a duplicate of an older one.
IDEMPOTENT_IN_FLIGHT_MAX: Final = 5

# There is no lingering: a task has all its rows at once.
_WITHOUT_EFFECT: Final = re.compile(
    r"linger\.ms|buffer\.memory|metadata\.max\.idle\.ms|partitioner\.(adaptive\.partitioning\.enable"
    r"|availability\.timeout\.ms)"
)
_REFUSED: Final = {
    "key.serializer": "keys are written as bytes; encode them with DataFrame operations",
    "value.serializer": "values are written as bytes; encode them with DataFrame operations",
    "interceptor.classes": "an interceptor could change the rows",
    "partitioner.class": "rows go where the column 'partition', their key (murmur2) or a full batch says",
    "transactional.id": "the option 'transactionalIdPrefix' names transactions, of which each task has its own",
}
_LEVELS: Final = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131_072, 22)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The settings of a producer."""

    client: ClientSettings
    acks: int = ALL
    enable_idempotence: bool = True
    compression: Codec = Codec.NONE
    compression_level: int | None = None
    # Kafka: 16 KiB, for low latency if records come one by one. A task has all its rows at once.
    batch_size: int = 512 * 1024
    max_request_size: int = 1024 * 1024
    max_in_flight_requests_per_connection: int = 5
    retries: int = INT32_MAX
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    max_block_ms: int = 60_000
    # Kafka: 60 s. A task's transaction stays open until its whole micro-batch is committed.
    transaction_timeout_ms: int = 900_000
    keys_decide: bool = True


# The integers: field → (lowest, highest).
_NUMBERS: Final[dict[str, tuple[int, int]]] = {
    "batch_size": (1, INT32_MAX),
    "max_request_size": (1, INT32_MAX),
    "max_in_flight_requests_per_connection": (1, INT32_MAX),
    "retries": (0, INT32_MAX),
    "request_timeout_ms": (1, INT32_MAX),
    "delivery_timeout_ms": (1, INT32_MAX),
    "max_block_ms": (1, INT32_MAX),
    "transaction_timeout_ms": (1, INT32_MAX),
}
_ACKS: Final = {"all": ALL, "-1": ALL, "1": 1, "0": 0}
# setting → (field, value by word)
_WORDS: Final[dict[str, tuple[str, Mapping[str, object]]]] = {
    "acks": ("acks", _ACKS),
    "enable.idempotence": ("enable_idempotence", {"true": True, "false": False}),
    "partitioner.ignore.keys": ("keys_decide", {"true": False, "false": True}),
    "compression.type": ("compression", {codec.name.lower(): codec for codec in Codec}),
}


def parse_producer_settings(options: Mapping[str, str]) -> ProducerSettings:
    """Parse the options that begin with ``kafka.``.

    Raises:
        OptionError: an option is unknown, has a wrong type, is out of bounds, or is not supported.
    """
    values: dict[str, object] = {}
    rest: dict[str, str] = {}
    named: dict[str, str] = {}
    for option, value in options.items():
        name = option.lower().removeprefix(PREFIX)
        if not option.lower().startswith(PREFIX) or _WITHOUT_EFFECT.fullmatch(name):
            continue
        if name in _REFUSED:
            raise OptionError(f"option 'kafka.{name}' is not supported: {_REFUSED[name]}")
        field = name.replace(".", "_")
        if field in _NUMBERS:
            values[field] = parse_number(PREFIX + name, value, *_NUMBERS[field])
        elif name in _WORDS or name.startswith("compression."):
            named[name] = value.strip().lower()
        else:
            rest[option] = value
    for name, parse in _WORDS.items():
        if name in named:
            field, value_of = parse
            values[field] = _one_of(name, named.pop(name), value_of)
    settings = ProducerSettings(client=parse_settings(rest), **values)  # type: ignore[arg-type]
    settings = replace(
        settings, client=_client(settings), compression_level=_level(settings, named)
    )
    return _checked(settings, asked="enable_idempotence" in values)


def _client(settings: ProducerSettings) -> ClientSettings:
    return replace(
        settings.client,
        request_timeout_ms=settings.request_timeout_ms,
        default_api_timeout_ms=settings.max_block_ms,
    )


def _one_of(name: str, text: str, values: Mapping[str, object]) -> object:
    if text not in values:
        raise OptionError(f"option 'kafka.{name}' is {text!r}; it must be {' or '.join(values)}")
    return values[text]


def _level(settings: ProducerSettings, named: Mapping[str, str]) -> int | None:
    """The level of the codec in use (KIP-390); levels of other codecs are validated and have no effect."""
    found: int | None = None
    for name, value in named.items():
        codec = next((c for c in _LEVELS if name == f"compression.{c.name.lower()}.level"), None)
        if codec is None:
            raise OptionError(f"option 'kafka.{name}' is not a setting of a Kafka producer")
        level = parse_number(PREFIX + name, value, *_LEVELS[codec])
        found = level if codec == settings.compression else found
    return found


def _checked(settings: ProducerSettings, *, asked: bool) -> ProducerSettings:
    """Check what idempotence needs: if it was enabled explicitly, raise OptionError; else disable it (KIP-679)."""
    in_flight = settings.max_in_flight_requests_per_connection
    problems = {
        "acks": settings.acks != ALL,
        "retries": settings.retries == 0,
        "max.in.flight.requests.per.connection": in_flight > IDEMPOTENT_IN_FLIGHT_MAX,
    }
    if settings.enable_idempotence and any(problems.values()):
        name = next(name for name, is_wrong in problems.items() if is_wrong)
        if asked:
            raise OptionError(
                f"option 'kafka.enable.idempotence' is true, which 'kafka.{name}' excludes"
            )
        settings = replace(settings, enable_idempotence=False)
    return settings
