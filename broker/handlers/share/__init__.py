"""Shell: share groups: the state of their partitions, between brokers."""

from broker.handlers.share import share_group_state

__all__ = ["share_group_state"]
