"""What a controller goes by where neither a topic nor the cluster says anything: its broker's file."""

from pathlib import Path

from tests.in_process import in_process
from tests.loops import in_loop
from tests.unit.handlers.config_requests import BROKER, DELETE, SET, change

UNCLEAN = "unclean.leader.election.enable"


@in_loop
async def test_a_default_of_the_cluster_that_is_taken_back_is_over(memory_path: Path) -> None:
    async with in_process(memory_path) as broker:
        await change(broker, BROKER, "", (UNCLEAN, SET, "true"))
    async with in_process(memory_path) as broker:

        def loses_data() -> bool:
            controller = broker.node.metadata_driver.controller
            return controller.draft().is_unclean_election_enabled("t")

        assert loses_data()
        await change(broker, BROKER, "", (UNCLEAN, DELETE, None))
        assert not loses_data()
