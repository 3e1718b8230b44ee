"""Pure: the lease of the active controller: a small object in the lake that it overwrites while it lives.

The lease only shows which controller is worth waiting for, and its address; the metadata log decides who it is. A lost
or stale lease costs time, never correctness. It moves in the order of (controller epoch, sequence), and another
broker's lease of an epoch is movement, whatever its sequence: several may claim one epoch. Other brokers measure its
age by their own clocks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from kafka_ds.topic.names import CLUSTER_METADATA

# A leading underscore marks a name that is not data: engines and VACUUM skip it.
LEASE_PATH = f"{CLUSTER_METADATA}/_lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The lease as written once; `released`: its holder has stopped."""

    controller_id: int
    controller_epoch: int
    sequence: int
    host: str
    port: int
    released: bool = False

    def follows(self, before: Lease) -> bool:
        """Whether this was written after another one that was seen."""
        if self.controller_epoch != before.controller_epoch:
            return self.controller_epoch > before.controller_epoch
        return self.controller_id != before.controller_id or self.sequence > before.sequence

    def encode(self) -> bytes:
        """The lease's bytes in the lake."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def decode_lease(data: bytes) -> Lease | None:
    """The lease in these bytes; None if they are not a lease, which counts as no sign of life."""
    try:
        found = json.loads(data)
        values = {field.name: found[field.name] for field in fields(Lease)}
    except (ValueError, KeyError, TypeError):
        return None
    for name, value in values.items():
        kind = {"host": str, "released": bool}.get(name, int)
        if type(value) is not kind:
            return None
    return Lease(**values)
