"""What several tests use: entity."""

from broker.metadata.events import QuotaComponent


def entity(**names: str | None) -> tuple[QuotaComponent, ...]:
    return tuple(
        QuotaComponent(entity_type=kind.replace("_", "-"), entity_name=name)
        for kind, name in sorted(names.items())
    )
