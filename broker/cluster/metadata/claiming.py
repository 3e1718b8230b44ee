"""Pure: what a broker decides in the commit with which it becomes the controller.

Rules of this file: each decision is made on the image as those before it leave it; nothing of it has happened yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker.cluster.controller.controller import Controller, Decision
from broker.cluster.events import Event
from broker.cluster.image import MetadataImage, Position

Result = TypeVar("Result")


class Claiming:
    """The decisions that make up a claim, each on top of those before it."""

    def __init__(self, controller: Controller, folder: str) -> None:
        self.folder = folder
        self._controller = controller
        self.events: list[Event] = []

    @property
    def image(self) -> MetadataImage:
        """The cluster as it will be."""
        return self._controller.image

    def take(self, make: Callable[[Controller], Decision[Result]]) -> Result:
        """Decide one more thing."""
        decision = make(self._controller)
        ahead = self._controller.image
        version = ahead.version + 1 if not self.events else ahead.version
        for event in decision.events:
            ahead.replay(event, Position(version, len(self.events)))
            self.events.append(event)
        return decision.result
