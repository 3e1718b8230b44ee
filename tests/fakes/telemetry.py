"""A topic of pushed metrics to which nothing is written."""


class NothingExported:
    """What metrics read of an exporter."""

    exported = failed = 0
