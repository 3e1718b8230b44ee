"""What several tests use: Standing."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from broker.config.broker import BrokerConfig
from broker.controller.metadata_driver import ControllerClaim
from broker.membership.candidacy import Candidacy
from broker.membership.member import decide_claim
from broker.metadata.events import Endpoint, SupportedFeature
from kafka_ds.delta.store.local import LocalStore
from kafka_ds.process.system import new_uuid
from tests.fakes.clock import ManualClock
from tests.fakes.cluster import identity_of
from tests.unit.controller.metadata_broker import Broker


class Standing:
    """A broker's candidacy, without the rest of the broker."""

    def __init__(
        self,
        folder: Path,
        node_id: int,
        *,
        store: Any = None,
        features: tuple[SupportedFeature, ...] = (),
    ) -> None:
        self.broker = Broker(folder, node_id=node_id)
        self.store = store or LocalStore(str(folder))
        self.thread = ThreadPoolExecutor(1)
        self.clock = ManualClock()
        endpoint = Endpoint(listener="PLAINTEXT", host="here", port=9090 + node_id)
        identity = identity_of(
            node_id, incarnation_id=new_uuid(), endpoints=(endpoint,), features=features
        )

        def decide(claiming: ControllerClaim, dead: int | None) -> None:
            decide_claim(claiming, identity, dead)

        network: Any = None  # Nobody is asked.
        self.candidacy = Candidacy(
            BrokerConfig(node_id=node_id),
            self.broker.driver,
            self.store,
            executor=self.thread,
            clock=self.clock,
            network=network,
            chance=lambda: 0.0,
            decide_claim=decide,
        )

    async def begin(self) -> None:
        await self.candidacy.begin("here", 9090 + self.broker.node_id)

    async def stop(self) -> None:
        await self.broker.driver.stop()
        self.thread.shutdown()
