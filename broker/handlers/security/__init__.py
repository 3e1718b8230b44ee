"""Shell: who somebody is (SASL), what he may (ACLs), how much (quotas), and SCRAM's users."""

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
