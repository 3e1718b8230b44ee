"""Pure: declarations of settings: name, type, default, bounds and description; and how values are parsed.

A setting is declared once, as a field of the class that has its value (`broker.config.broker` and its bases,
`broker.log.config`). Type checking, parsing, bounds, the response to DescribeConfigs and docs/reference/settings.md all
use this declaration. A field's name is Kafka's name with underscores for dots. A value that is not supported is
refused, never ignored: a broker that does not start is better than one that silently deviates from its configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cache
from typing import Any, TypeAlias, TypeVar

from kafka_ds.security.secret import Secret

T = TypeVar("T")
SettingValue: TypeAlias = bool | int | float | str | tuple[str, ...] | Secret | None

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
_METADATA_KEY = "setting"


class ConfigError(Exception):
    """The configuration is invalid; the message names the setting, the value and the place."""

    exit_status = 1
    """Of a process that ends with it."""

    def at(self, place: str) -> ConfigError:
        """The same error with the place of the setting."""
        return ConfigError(f"{self} ({place})")


def suggestion(name: str, names: Iterable[str]) -> str:
    """What an error about an unknown name ends with: those of the known ones that are like it."""
    import difflib  # 2 ms, needed only for a mistake

    near = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.7)
    return f": did you mean {' or '.join(near)}?" if near else ""


class ConfigType(IntEnum):
    """The type of a value; the numbers are those of DescribeConfigs (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_WHOLE = {
    ConfigType.INT: (-(2**31), MAX_INT),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), MAX_LONG),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    `synonyms` are the broker settings that give a topic's setting its default, by priority, each with the factor of its
    unit. `honours` are the only supported values; None means all. `ours` marks a default or a name that Apache Kafka
    does not have. `changeable`: it may be changed while the broker runs. `fixed`: why it may not, although Kafka allows
    it.
    """

    name: str
    kind: ConfigType
    default: SettingValue
    says: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    nullable: bool = False
    honours: tuple[str, ...] | None = None
    synonyms: tuple[tuple[str, int], ...] = ()
    ours: bool = False
    changeable: bool = False
    fixed: str = ""

    @property
    def sensitive(self) -> bool:
        """Whether its value must not be shown."""
        return self.kind is ConfigType.PASSWORD

    def parse(self, text: str) -> SettingValue:
        """Parse a value; raises ConfigError."""
        value = self._typed(text.strip())
        self._check_bounds(text, value)
        if self.honours is not None and (self.text(value) or "") not in self.honours:
            accepted = " or ".join(filter(None, self.honours))
            way_out = f"leave it out, or set it to {accepted}" if accepted else "leave it out"
            shown = "(hidden)" if self.sensitive else text
            raise ConfigError(f"{self.name}={shown} is not supported by this broker: {way_out}")
        return value

    def text(self, value: SettingValue) -> str | None:
        """The value as Kafka writes it."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def _typed(self, text: str) -> SettingValue:
        if self.kind in _WHOLE:
            return self._whole(text)
        if self.kind is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{self.name}={text} is neither true nor false")
            return text.lower() == "true"
        if self.kind is ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise ConfigError(f"{self.name}={text} is not a number") from None
        if self.kind is ConfigType.LIST:
            return tuple(item.strip() for item in text.split(",")) if text else ()
        if self.kind is ConfigType.PASSWORD:
            return Secret(text) if text else None
        return text

    def _whole(self, text: str) -> int:
        digits = text[1:] if text[:1] in ("-", "+") else text
        # int() also accepts "1_000" and the digits of other scripts.
        if not (digits.isascii() and digits.isdigit()):
            raise ConfigError(f"{self.name}={text} is not an integer")
        low, high = _WHOLE[self.kind]
        if len(digits) > 40 or not low <= int(text) <= high:
            raise ConfigError(f"{self.name}={text[:60]} does not fit {self.kind.name.lower()}")
        return int(text)

    def _check_bounds(self, text: str, value: SettingValue) -> None:
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if item not in self.choices:
                    allowed = ", ".join(self.choices)
                    which = f": {item}" if isinstance(value, tuple) and len(value) > 1 else ""
                    raise ConfigError(f"{self.name}={text}{which} is not one of: {allowed}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if not (self.low is None or value >= self.low):
            raise ConfigError(f"{self.name}={text} is below the minimum, {self.low}")
        if not (self.high is None or value <= self.high):
            raise ConfigError(f"{self.name}={text} is above the maximum, {self.high}")


def _declare(kind: ConfigType, default: SettingValue, says: str, more: Mapping[str, Any]) -> Any:
    setting = Setting(name="", kind=kind, default=default, says=says, **more)
    return field(default=default, metadata={_METADATA_KEY: setting})


def boolean(default: bool, says: str, **more: Any) -> Any:
    """Declares a boolean."""
    return _declare(ConfigType.BOOLEAN, default, says, more)


def i16(default: int | None, says: str, **more: Any) -> Any:
    """Declares a 16-bit integer; `low` and `high` bound it."""
    return _declare(ConfigType.SHORT, default, says, {"nullable": default is None, **more})


def i32(default: int | None, says: str, **more: Any) -> Any:
    """Declares a 32-bit integer; `low` and `high` bound it."""
    return _declare(ConfigType.INT, default, says, {"nullable": default is None, **more})


def i64(default: int | None, says: str, **more: Any) -> Any:
    """Declares a 64-bit integer; `low` and `high` bound it."""
    return _declare(ConfigType.LONG, default, says, {"nullable": default is None, **more})


def double(default: float, says: str, **more: Any) -> Any:
    """Declares a floating-point number."""
    return _declare(ConfigType.DOUBLE, default, says, more)


def string(default: str | None, says: str, **more: Any) -> Any:
    """Declares a string; `choices` are the only valid ones."""
    return _declare(ConfigType.STRING, default, says, {"nullable": default is None, **more})


def password(says: str, **more: Any) -> Any:
    """Declares a string that is never shown."""
    return _declare(ConfigType.PASSWORD, None, says, {"nullable": True, **more})


def strings(default: tuple[str, ...] | None, says: str, **more: Any) -> Any:
    """Declares a comma-separated list."""
    return _declare(ConfigType.LIST, default, says, {"nullable": default is None, **more})


def settings_of(cls: type) -> Mapping[str, Setting]:
    """The settings that a class declares, by Kafka's name."""
    return _settings_of(cls)


@cache
def _settings_of(cls: type) -> Mapping[str, Setting]:
    found: dict[str, Setting] = {}
    for declared in fields(cls):
        setting = declared.metadata.get(_METADATA_KEY)
        if setting is not None:
            name = declared.name.replace("_", ".")
            found[name] = replace(setting, name=name)
    return found


def part(cls: type[T], whole: T) -> T:
    """A `cls` with its settings from an object of a class that inherits them, to be sent to another process."""
    names = map(attribute_of, settings_of(cls))
    return cls(**{name: getattr(whole, name) for name in names})


def attribute_of(name: str) -> str:
    """The field of a setting."""
    return name.replace(".", "_")


@cache
def broker_synonyms(cls: type) -> Mapping[str, tuple[Setting, int, str]]:
    """The broker settings that only give topics their defaults: name -> (setting, factor, topic's setting)."""
    found: dict[str, tuple[Setting, int, str]] = {}
    for setting in settings_of(cls).values():
        for name, factor in setting.synonyms:
            found[name] = (_synonym(setting, name, factor), factor, setting.name)
    return found


def _synonym(setting: Setting, name: str, factor: int) -> Setting:
    if factor == 1:
        return replace(setting, name=name, synonyms=())
    # Kafka's settings in minutes and hours have 32 bits and bounds in their own unit.
    low = setting.low if setting.low is None or setting.low < 0 else -(-setting.low // factor)
    return replace(
        setting, name=name, kind=ConfigType.INT, default=None, nullable=True, low=low, synonyms=()
    )
