"""Shell: what all `kafka-ds` commands share: addressing clusters and lakes, and errors.

A cluster is given by --bootstrap-server, a profile or the environment; the default is this machine's port 9092.
`--command-config` takes a properties file of Kafka's own tools. Client modules are imported on demand, so that `--help`
is fast.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from broker.cli.output import awaiting
from kafka_ds.process.settings import suggestion

if TYPE_CHECKING:
    from kafka_ds.client.admin import Admin, TopicDescription
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.client.producer_settings import ProducerSettings
    from kafka_ds.client.settings import ClientSettings

ENVIRONMENT_SERVER = "KAFKA_DS_BOOTSTRAP_SERVER"
ENVIRONMENT_PROFILE = "KAFKA_DS_PROFILE"
ENVIRONMENT_PROFILES = "KAFKA_DS_PROFILES"
DEFAULT_SERVER = "127.0.0.1:9092"
# How long to retry the first contact: a starting broker gets time, a wrong address is reported soon.
CONTACT_SECONDS = 5.0
# The limit of one contact attempt over all bootstrap servers.
CONTACT_ATTEMPT_MS = 12_000
REQUEST_TIMEOUT_MS = 15_000
API_TIMEOUT_MS = 20_000

T = TypeVar("T", bound=Callable[..., Any])


class CommandError(click.ClickException):
    """The command failed; the reason is one line."""

    def format_message(self) -> str:
        return self.message.replace("\n", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """The cluster to use, and how to reach it."""

    bootstrap_server: str | None = None
    command_config: str | None = None
    profile: str | None = None
    lake: str | None = None

    def over(self, other: ClusterTarget) -> ClusterTarget:
        """These values; missing ones come from `other`."""
        return ClusterTarget(
            bootstrap_server=self.bootstrap_server or other.bootstrap_server,
            command_config=self.command_config or other.command_config,
            profile=self.profile or other.profile,
            lake=self.lake or other.lake,
        )

    def resolved(self) -> ClusterTarget:
        """These values completed from profile and environment. Raises CommandError."""
        found = self
        profile = self.profile or os.environ.get(ENVIRONMENT_PROFILE)
        if profile:
            found = found.over(_profile(profile))
        server = found.bootstrap_server or os.environ.get(ENVIRONMENT_SERVER) or DEFAULT_SERVER
        return replace(found, bootstrap_server=server)

    def client_options(self) -> dict[str, str]:
        """The client's options, `kafka.<setting>`. Raises CommandError."""
        known = self.resolved()
        options = {
            "kafka.request.timeout.ms": str(REQUEST_TIMEOUT_MS),
            "kafka.default.api.timeout.ms": str(API_TIMEOUT_MS),
            "kafka.client.id": "kafka-ds-cli",
            **{f"kafka.{name}": text for name, text in _properties(known.command_config).items()},
        }
        options["kafka.bootstrap.servers"] = known.bootstrap_server or DEFAULT_SERVER
        return options

    def settings(self) -> ClientSettings:
        """The client's settings. Raises CommandError."""
        from kafka_ds.client.settings import parse_settings
        from kafka_ds.errors import OptionError

        try:
            return parse_settings(self.client_options())
        except OptionError as problem:
            raise self._mistaken(problem) from None

    def producer_settings(self, more: Mapping[str, str]) -> ProducerSettings:
        """The settings of a producer; ``more`` has further Kafka settings. Raises CommandError."""
        from kafka_ds.client.producer_settings import parse_producer_settings
        from kafka_ds.errors import OptionError

        options = {**self.client_options(), **{f"kafka.{n}": v for n, v in more.items()}}
        # The broker may wait that long for replicas before it answers.
        options["kafka.request.timeout.ms"] = str(2 * REQUEST_TIMEOUT_MS)
        try:
            return parse_producer_settings(options)
        except OptionError as problem:
            raise self._mistaken(problem) from None

    def _mistaken(self, problem: Exception) -> CommandError:
        place = f" ({self.resolved().command_config})" if self.resolved().command_config else ""
        return CommandError(plain(problem) + place)

    @contextmanager
    def cluster(
        self, *, creates_topics: bool = False, request_timeout_ms: int | None = None
    ) -> Iterator[Cluster]:
        """The cluster, once a broker has answered. Raises CommandError if none does."""
        from kafka_ds.client.cluster import Cluster

        settings = self.settings()
        with awaiting(f"connecting to {self.resolved().bootstrap_server}"):
            _contact(settings)
        if request_timeout_ms is not None:
            settings = replace(settings, request_timeout_ms=request_timeout_ms)
        with Cluster(settings, creates_topics=creates_topics) as cluster:
            yield cluster

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        """An Admin of the cluster. Raises CommandError."""
        from kafka_ds.client.admin import Admin

        with self.cluster() as cluster:
            yield Admin(cluster)

    def lake_uri(self, given: str | None) -> str:
        """The given lake, or the cluster's, which needs a broker. Raises CommandError."""
        known = given or self.resolved().lake
        if known is not None:
            return known
        with self.admin() as admin:
            return self.lake_of(admin)

    def broker_topics(self, given: str | None) -> Collection[str] | None:
        """The topics of the brokers whose lake is read; None if a lake was given, or they do not answer."""
        from kafka_ds.errors import KafkaDsError
        from kafka_ds.protocol.errors import KafkaError

        try:
            if not (given or self.resolved().lake):
                with self.admin() as admin:
                    return admin.describe_topics().keys()
        except (CommandError, KafkaDsError, KafkaError):
            pass
        return None

    def lake_of(self, admin: Admin) -> str:
        """The given lake, or the brokers' lake.uri. Raises CommandError."""
        from kafka_ds.protocol.errors import KafkaError

        known = self.resolved().lake
        if known:
            return known
        description = admin.describe_cluster()
        live = [each.node_id for each in description.brokers if not each.is_fenced]
        try:
            entries = admin.describe_broker_configs(live[0]) if live else []
        except KafkaError as refusal:
            raise CommandError(
                f"the brokers do not say where their lake is ({refusal.code.name}): give --lake"
            ) from None
        lake_uri = next((each.value for each in entries if each.name == "lake.uri"), None)
        if not lake_uri:
            raise CommandError(
                "these brokers have no lake (lake.uri): this is not a kafka-ds cluster"
            )
        return lake_uri


def _contact(settings: ClientSettings) -> None:
    """Wait briefly until a broker answers. Raises CommandError."""
    from kafka_ds.client.cluster import Cluster
    from kafka_ds.errors import AuthenticationRefused, ClientError

    # What the client warns of is said by `awaiting`.
    logger = logging.getLogger("kafka_ds.client")
    logger.setLevel(logging.ERROR)
    each_ms = max(500, CONTACT_ATTEMPT_MS // len(settings.bootstrap_servers))
    brief = replace(
        settings,
        request_timeout_ms=min(settings.request_timeout_ms, each_ms),
        socket_connection_setup_timeout_ms=min(
            settings.socket_connection_setup_timeout_ms, each_ms
        ),
    )
    deadline = time.monotonic() + CONTACT_SECONDS
    with Cluster(brief) as cluster:
        while True:
            try:
                cluster.any_broker()
            except AuthenticationRefused as problem:
                raise CommandError(plain(problem)) from None
            except ClientError as problem:
                if time.monotonic() < deadline:
                    time.sleep(0.2)
                    continue
                raise CommandError(plain(problem)) from None
            logger.setLevel(logging.NOTSET)
            return


_OPTION = re.compile(r"options? '?kafka\.([\w.]+)'?")
_NO_BROKER = "no broker of option 'kafka.bootstrap.servers' answers"
_PROTOCOL = re.compile(
    r" \((option 'kafka\.security\.protocol' is \w+: is it this listener's\?[^)]*)\)"
)
_FORBIDDEN = re.compile(r"\b(?:TOPIC|GROUP|CLUSTER|TRANSACTIONAL_ID)_AUTHORIZATION_FAILED\b")
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
_NAME = re.compile(r"'?\bkafka\.([a-z][a-z.]+[a-z])'?")


def plain(problem: object) -> str:
    """An error's text with this command's names instead of Spark options'."""
    text = str(problem)
    if protocol := _PROTOCOL.search(text):
        cause = protocol[1].strip()
        stop = "" if cause.endswith("?") else "."
        text = f"{cause}{stop} {_PROTOCOL.sub('', text).removeprefix(f'{_NO_BROKER}: ')}"
    if _FORBIDDEN.search(text) and "lake.read.only" not in text:
        text += ": an ACL is missing (the broker's log has the operation, kafka-acls adds one)"
        text += ", or the broker is a read replica"
    text = text.replace(
        _NO_BROKER,
        "no broker answers (start one with `kafka-ds broker`, or name one with --bootstrap-server)",
    )
    text = text.replace("option 'kafka.bootstrap.servers'", "--bootstrap-server")
    text = _ERRNO.sub("", text)
    return _NAME.sub(r"\1", _OPTION.sub(r"\1", text)).replace("\n", " ")


def _profile(name: str) -> ClusterTarget:
    import tomllib

    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(
        os.environ.get(ENVIRONMENT_PROFILES) or f"{folder}/kafka-ds/profiles.toml"
    ).expanduser()
    try:
        profiles = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CommandError(
            f"profile {name}: {path}: {(problem.strerror or str(problem)).lower()}"
        ) from None
    except ValueError as problem:
        raise CommandError(f"profile {name}: {path}: {problem}") from None
    found = profiles.get(name)
    if not isinstance(found, dict):
        raise CommandError(
            f"{path} has no profile {name}; it has {', '.join(sorted(profiles)) or 'none'}"
        )
    names = {"bootstrap-server", "command-config", "lake"}
    unknown = sorted(found.keys() - names)
    if unknown:
        raise CommandError(
            f"{path}: profile {name}: {unknown[0]} is not one of {', '.join(sorted(names))}"
        )
    return ClusterTarget(**{key.replace("-", "_"): str(text) for key, text in found.items()})


def _properties(path: str | None) -> dict[str, str]:
    from broker.config.properties import PropertiesError, parse_properties

    if path is None:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
        return {each.key: each.value for each in parse_properties(text)}
    except OSError as problem:
        raise CommandError(
            f"--command-config {path}: {(problem.strerror or str(problem)).lower()}"
        ) from None
    except UnicodeDecodeError:
        raise CommandError(f"--command-config {path}: not UTF-8 text") from None
    except PropertiesError as problem:
        raise CommandError(f"--command-config {path}, line {problem.line}: {problem}") from None


# -- options ------------------------------------------------------------------------------------

_CLUSTER_OPTIONS = (
    click.option(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help=f"Brokers of the first contact, with commas between. Default: ${ENVIRONMENT_SERVER}, or {DEFAULT_SERVER}.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        help="Properties of a client (TLS, SASL), as for Kafka's own tools.",
    ),
    click.option(
        "--profile",
        metavar="NAME",
        help=f"A profile of profiles.toml. Default: ${ENVIRONMENT_PROFILE}.",
    ),
)


# Options that the reference page describes once for all commands.
SHARED = ("bootstrap_server", "command_config", "profile")


def cluster_options(function: T) -> T:
    """Add the options of the cluster to a command, which is called with ``target``."""

    @functools.wraps(function)
    def called(
        *arguments: Any,
        bootstrap_server: str | None,
        command_config: str | None,
        profile: str | None,
        **named: Any,
    ) -> Any:
        here = ClusterTarget(
            bootstrap_server=bootstrap_server, command_config=command_config, profile=profile
        )
        above = click.get_current_context().find_object(ClusterTarget) or ClusterTarget()
        return function(*arguments, target=here.over(above), **named)

    wrapped: Any = called
    for option in reversed(_CLUSTER_OPTIONS):
        wrapped = option(wrapped)
    found: T = wrapped
    return found


json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


def pairs(given: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse repeated `key=value`. Raises CommandError."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"{option} {text}: not of the form key=value")
        found[name.strip()] = value.strip()
    return found


def topic_of(admin: Admin, name: str) -> TopicDescription:
    """The topic of this name. Raises CommandError if there is none."""
    found = admin.describe_topics([name]).get(name)
    if found is None:
        raise no_such_topic(name, admin.describe_topics())
    return found


def no_such_topic(name: str, names: Iterable[str]) -> CommandError:
    """The error for a topic that does not exist, with those of `names` that are like it."""
    return CommandError(f"there is no topic {name}{suggestion(name, names)}")
