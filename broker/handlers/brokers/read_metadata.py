"""Shell: ReadMetadata 0: the commits of the metadata log for the other brokers, by long poll (kafka-ds only).

- Answered by the active controller with durable commits, in their order and without a gap; it waits up to
  max_wait_ms for the next one. NOT_CONTROLLER elsewhere, with the controller that this broker knows.
- OFFSET_OUT_OF_RANGE: some of these commits are no longer in memory; the table has them.
- If a broker asks with a later epoch, or beyond what this controller knows, it may know a newer controller: this one
  then looks into the log at once, and resigns if there is one.

Versions: 0. Key 20001, which no release of Apache Kafka has, and which is not advertised to clients.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.registry import RequestContext, serves
from kafka_ds.protocol.errors import ErrorCode
from kafka_ds.protocol.messages import ReadMetadataRequest, ReadMetadataResponse
from kafka_ds.protocol.messages.brokers import MetadataEntry

if TYPE_CHECKING:
    from broker.controller.metadata_driver import MetadataDriver

_LOGGER = logging.getLogger(__name__)

WAIT_MS_MAX = 10_000


@serves(ReadMetadataRequest, versions="0", internal=True, pipelined=True)
async def read_metadata(
    request: ReadMetadataRequest, context: RequestContext
) -> ReadMetadataResponse:
    """Return the following commits, or wait for them."""
    driver = context.broker.metadata_driver
    image = driver.image
    if driver.is_active and (
        request.controller_epoch > image.controller_epoch or request.after_version > image.version
    ):
        await _look_again(driver)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1_000
    while driver.is_active and request.after_version <= image.version:
        entries = driver.entries_after(request.after_version, request.max_bytes)
        if entries is None:
            return _answer(driver, ErrorCode.OFFSET_OUT_OF_RANGE)
        left = deadline - loop.time()
        if entries or left <= 0:
            found = [MetadataEntry(version=e.version, events=e.encoded) for e in entries]
            return _answer(driver, ErrorCode.NONE, found)
        await driver.wait_for_change(left)
    return _answer(driver, ErrorCode.NOT_CONTROLLER)


async def _look_again(driver: MetadataDriver) -> None:
    try:
        await driver.confirm()
    except OSError as error:
        _LOGGER.warning("%s cannot be read: %s", driver.folder, error)


def _answer(
    driver: MetadataDriver, error: ErrorCode, entries: list[MetadataEntry] | None = None
) -> ReadMetadataResponse:
    image = driver.image
    return ReadMetadataResponse(
        error_code=error,
        controller_id=image.controller_id,
        controller_epoch=image.controller_epoch,
        last_version=image.version,
        entries=entries or [],
    )
