"""Pure: a broker's settings of authorization, delegation tokens and quotas.

Declarations only: a part of `broker.config.broker`.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.principal import Principal, principal_of
from broker.worker.rpc import TierSettings
from kafka_ds.process.settings import ConfigError, boolean, i32, i64, password, string
from kafka_ds.security.secret import Secret

_DAY_MS = 24 * 3_600_000
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig(TierSettings):
    """The settings of ACLs, of delegation tokens and of client quotas."""

    authorizer_class_name: str = string(
        "",
        f"The authorizer. Empty disables authorization; `{STANDARD_AUTHORIZER}` enforces ACLs.",
        honours=("", STANDARD_AUTHORIZER),
    )
    super_users: str = string(
        "",
        "Users who may do everything, regardless of ACLs: `User:admin;User:other`. The brokers' own users must be "
        "among them.",
    )
    allow_everyone_if_no_acl_found: bool = boolean(
        False, "Whether everybody may use a resource that no ACL mentions."
    )
    delegation_token_secret_key: Secret | None = password(
        "The key of which the secrets of delegation tokens are made, the same for all brokers; without it there are "
        "no tokens."
    )
    delegation_token_max_lifetime_ms: int = i64(
        7 * _DAY_MS, "How long a delegation token may live, however often it is renewed.", low=1
    )
    delegation_token_expiry_time_ms: int = i64(
        _DAY_MS, "How long a delegation token lives unless it is renewed.", low=1
    )
    delegation_token_expiry_check_interval_ms: int = i64(
        _DAY_MS // 24, "How often expired delegation tokens are deleted.", low=1
    )
    quota_window_num: int = i32(
        11, "The number of samples over which the rates of client quotas are measured.", low=1
    )
    quota_window_size_seconds: int = i32(1, "The length of one of these samples.", low=1)
    controller_quota_window_num: int = i32(
        11,
        "The number of samples over which the rate of topic changes (controller_mutation_rate quotas) is measured.",
        low=1,
    )
    controller_quota_window_size_seconds: int = i32(1, "The length of one of these samples.", low=1)

    @property
    def super_principals(self) -> tuple[Principal, ...]:
        """The super users. Raises ConfigError for an invalid principal."""
        texts = [text.strip() for text in self.super_users.split(";")]
        try:
            return tuple(principal_of(text) for text in texts if text)
        except ValueError as error:
            raise ConfigError(f"super.users={self.super_users}: {error}") from None
