"""Shell: authentication (SASL), authorization (ACLs), quotas, SCRAM users, and delegation tokens."""

from broker.handlers.security import (
    acls,
    client_quotas,
    delegation_tokens,
    sasl_authenticate,
    sasl_handshake,
    scram_credentials,
)

__all__ = [
    "acls",
    "client_quotas",
    "delegation_tokens",
    "sasl_authenticate",
    "sasl_handshake",
    "scram_credentials",
]
