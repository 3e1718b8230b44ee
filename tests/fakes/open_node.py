"""A broker that lets everybody do everything, as one without an authorizer and without quotas does."""

from types import SimpleNamespace
from typing import Any

OPEN_SECURITY: Any = SimpleNamespace(authorizer=None, quotas=SimpleNamespace(is_limiting=False))
OPEN_NODE: Any = SimpleNamespace(
    security=OPEN_SECURITY, share_partitions=SimpleNamespace(disconnected=lambda client: None)
)
