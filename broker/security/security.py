"""Shell: assembles a broker's authorizer, quotas and credentials and applies metadata changes to them.

Without `authorizer.class.name` there is no authorizer, and everything is allowed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from broker.metadata.acls import AclOperation, ResourceType
from broker.metadata.events import (
    AclCreated,
    AclDeleted,
    ClientQuotaChanged,
    DelegationTokenDeleted,
    Event,
)
from broker.metadata.topic_names import NAME_LENGTH_MAX
from broker.security.authentication.credentials import Credentials
from broker.security.authentication.scram_users import ScramUsers
from broker.security.authentication.tokens import TokenLogins, token_rules
from broker.security.authorization.authorizer import Authorizer
from broker.security.quotas.address_rates import AddressRates
from broker.security.quotas.quotas import ClientQuotas

if TYPE_CHECKING:
    from broker.config.access import AccessConfig
    from broker.metadata.image import MetadataImage
    from broker.principal import Principal
    from kafka_ds.delta.store.store import Store
    from kafka_ds.process.seams import Clock

# Kafka's logger for authorization decisions.
_LOGGER = logging.getLogger("kafka.authorizer.logger")


class Security:
    """One broker's authorizer, users and quotas."""

    def __init__(
        self,
        config: AccessConfig,
        image: MetadataImage,
        store: Store,
        *,
        node_id: int,
        executor: Executor,
        new_uuid: Callable[[], bytes],
        clock: Clock,
        address_rates: AddressRates,
    ) -> None:
        """`address_rates` is shared with the acceptors."""
        self._image = image
        self._address_rates = address_rates
        self.authorizer = _authorizer(config)
        self.quotas = ClientQuotas(
            samples=config.quota_window_num,
            window_ms=config.quota_window_size_seconds * 1_000,
            mutation_samples=config.controller_quota_window_num,
            mutation_window_ms=config.controller_quota_window_size_seconds * 1_000,
        )
        self.scram_users = ScramUsers()
        self.token_logins = TokenLogins(token_rules(config), image.security.tokens, clock.now_ms)
        self.credentials = Credentials(
            store,
            image,
            self.scram_users,
            node_id=node_id,
            executor=executor,
            new_uuid=new_uuid,
        )

    async def start(self) -> None:
        """Apply the current metadata."""
        self._apply_acls()
        self._apply_quotas()
        await self.credentials.start()

    def stop(self) -> None:
        """Stop reading credentials."""
        self.credentials.stop()

    def apply(self, events: Sequence[Event]) -> None:
        """Apply committed metadata events."""
        if any(isinstance(event, AclCreated | AclDeleted) for event in events):
            self._apply_acls()
        if any(isinstance(event, ClientQuotaChanged) for event in events):
            self._apply_quotas()
        for event in events:
            if isinstance(event, DelegationTokenDeleted):
                self.token_logins.forget(event.token_id)
        self.credentials.applied(events)

    def _apply_quotas(self) -> None:
        quotas = self._image.security.quotas
        self.quotas.quotas.replace(quotas)
        self._address_rates.replace(quotas)

    def _apply_acls(self) -> None:
        if self.authorizer is not None:
            self.authorizer.replace(self._image.security.acls.values())


def _authorizer(config: AccessConfig) -> Authorizer | None:
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        config.super_principals,
        allows_unlisted=config.allow_everyone_if_no_acl_found,
        denied=_log_denied,
    )


def _log_denied(
    principal: Principal, host: str, operation: int, resource_type: int, name: str
) -> None:
    _LOGGER.info(
        "Principal = %s is Denied Operation = %s from host = %s on resource = %s:LITERAL:%s",
        principal,
        AclOperation(operation).name,
        host,
        ResourceType(resource_type).name,
        name if len(name) <= NAME_LENGTH_MAX else f"{name[:NAME_LENGTH_MAX]}...",
    )
