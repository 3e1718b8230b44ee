"""Shell: the APIs that this broker serves; importing the package registers them all.

- Each subject has a folder, whose `__init__` describes it and registers its handlers. Each API has a module, which
  opens with its contract: what it does, what its versions add, what is left out.
- No subject imports another one. Code that several need is here: `common`, `recovery`, `responses`, `time_limit`.
- `docs/reference/protocol.md` and the answer to ApiVersions are derived from the registrations.
"""

from broker.handlers import (
    brokers,
    cluster,
    configs,
    groups,
    records,
    replicas,
    security,
    share,
    telemetry,
    topics,
    transactions,
)

__all__ = [
    "brokers",
    "cluster",
    "configs",
    "groups",
    "records",
    "replicas",
    "security",
    "share",
    "telemetry",
    "topics",
    "transactions",
]
