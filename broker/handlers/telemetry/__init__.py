"""Shell: the metrics of clients: what they are to push, and what they push (KIP-714)."""

from broker.handlers.telemetry import get_telemetry_subscriptions, push_telemetry

__all__ = ["get_telemetry_subscriptions", "push_telemetry"]
