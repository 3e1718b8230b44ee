"""Pure: how parts of a broker reach the other brokers of the cluster.

The image says which brokers there are and where, at each request; each part has connections of its own
(`broker.transport.peers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.metadata.image import MetadataImage
    from broker.transport.peers import Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBrokers:
    """How other brokers are reached: by the inter-broker listener, each request within `timeout_ms`."""

    node_id: int
    image: MetadataImage
    listener: str
    new_peers: Callable[[], Peers]
    timeout_ms: int
