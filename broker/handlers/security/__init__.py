"""Shell: authentication (SASL), authorization (ACLs), quotas, and SCRAM users."""

from broker.handlers.security import (
    acls,
    client_quotas,
    sasl_authenticate,
    sasl_handshake,
    scram_credentials,
)

__all__ = [
    "acls",
    "client_quotas",
    "sasl_authenticate",
    "sasl_handshake",
    "scram_credentials",
]
