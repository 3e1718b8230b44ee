"""Pure: what a task says of a plan that it cannot carry out any more."""


class PlanGone(RuntimeError):
    """Rows of a pinned plan are elsewhere by now (a file was removed, a log compacted): plan the query anew."""
