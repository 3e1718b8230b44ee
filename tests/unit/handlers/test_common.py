"""What several handlers tell: which broker a client shall take for the controller."""

from broker.handlers.common import brokers_of, controller_of
from broker.metadata.events import ControllerChange
from tests.unit.controller.controller_desk import ClusterDesk


def told_controller(desk: ClusterDesk) -> int:
    return controller_of(desk.image, brokers_of(desk.image, "PLAINTEXT"))


def test_a_client_is_told_of_a_controller_that_lives() -> None:
    desk = ClusterDesk(1, 2, 3)
    assert told_controller(desk) == 1, "nobody is, and each one sends on what is to be decided"
    desk.make_durable([ControllerChange(controller_id=3, controller_epoch=1)])
    assert told_controller(desk) == 3
    desk.fence(3)
    assert told_controller(desk) == 1
    desk.beat(3)
    assert told_controller(desk) == 3
    desk.beat(3, want_shut_down=True)
    assert told_controller(desk) == 1
    desk.fence(1, 2, 3)
    assert told_controller(desk) == -1
