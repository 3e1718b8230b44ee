"""Shell: the batch reader: plans in Spark's planning worker, reads on the executors.

- Spark pickles the reader after pushing the filters and before asking for partitions: the results of planning are in
  the partitions alone.
- Planning reads no row and imports no compiled loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from kafka_ds.source.filters.predicate import Predicate
from kafka_ds.source.filters.pushdown import pushed
from kafka_ds.source.options.options import Options
from kafka_ds.source.plan.input_partitions import task_groups
from kafka_ds.source.plan.pinned import pin
from kafka_ds.source.plan.scan_plan import Plan, plan_scan
from kafka_ds.source.read.partition_reader import ReadConfig, read_tasks, report_loss
from kafka_ds.source.session.optimizer import CLASS_NAME
from kafka_ds.spark_process import acknowledge, answer_at_once, settle

if TYPE_CHECKING:
    import pyarrow as pa

LOGGER = logging.getLogger("kafka_ds.source")


def read_config(options: Options, schema: pa.Schema, predicate: Predicate) -> ReadConfig:
    """The options that tasks need."""
    return ReadConfig(
        client=options.client,
        schema=schema,
        predicate=predicate,
        poll_timeout_ms=options.poll_timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
        fsspec=options.fsspec,
    )


class DescribedPartition(InputPartition):
    """A partition with a description of its plan: the optimizer's rule finds the text in its pickle.

    For `explain`, and its size for joins.
    """

    def __init__(self, value: Any, plan: str, size_bytes: int | None) -> None:
        super().__init__(value)
        self.plan = f"<kafka_ds: {plan}>"
        self.size = "" if size_bytes is None else f"<kafka_ds bytes: {size_bytes}>"


class PlaceholderPartition(InputPartition):
    """What Spark's push-down gets for a plan: afterwards the rule has the query planned again."""

    def __init__(self) -> None:
        super().__init__(None)

    def refuse(self) -> NoReturn:
        """Raise an error with what a user can do.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"the query was not planned, because the optimizer's rule {CLASS_NAME} did not run: take it out of "
            "spark.sql.optimizer.excludedRules, or, where spark.experimental.extraOptimizations was replaced, "
            "call kafka_ds.register(spark) after that"
        )


def _partitions(plan: Plan, slots: int | None, *, size_bytes: int | None) -> list[InputPartition]:
    groups = task_groups(plan, slots)
    found = [InputPartition(group) for group in groups]
    # Without anything to read Spark asks for one partition without a value, which can report that size.
    if found or size_bytes is not None:
        first = groups[0] if groups else None
        found[:1] = [DescribedPartition(first, plan.describe(len(groups)), size_bytes)]
    return found


def slots_for(options: Options, slots: int | None) -> int | None:
    """Over how many slots small tasks are spread; None if the options set the number of tasks."""
    is_cut = options.min_partitions is not None or options.max_records_per_partition is not None
    return None if is_cut else slots


class KafkaBatchReader(DataSourceReader):
    """Reads the offsets that the options bound, once.

    ``slots`` are those of the session (`slots.slots_of`).
    """

    def __init__(self, options: Options, schema: pa.Schema, *, slots: int | None = None) -> None:
        self._options = options
        self.slots = slots_for(options, slots)
        self._schema = schema
        self._predicate = options.where
        self._with_sizes = False
        for name in options.ignored:
            LOGGER.warning("option '%s' is ignored in a batch query", name)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # In a task: Spark sends the task's input only after the reader was acknowledged.
        acknowledge()
        self.__dict__.update(state)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the plan, pinned to offsets, leader epochs and versions of the tables."""
        answer_at_once()
        options = self._options
        pinned = pin(options, self._predicate, with_sizes=self._with_sizes)
        plan = plan_scan(
            pinned.views,
            self._predicate,
            min_partitions=options.min_partitions,
            max_records_per_partition=options.max_records_per_partition,
        )
        report_loss(list(plan.lost), fail=options.fail_on_data_loss)
        size_bytes = plan.size_bytes(pinned.hot_offset_bytes) if self._with_sizes else None
        found = _partitions(plan, self.slots, size_bytes=size_bytes)
        # The same process plans the next query.
        settle()
        return found

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """The rows of some tasks, as Arrow batches."""
        if isinstance(partition, PlaceholderPartition):
            partition.refuse()
        # Spark asks for one partition without a value if there is nothing to read, and 4.1 for none.
        if partition is None or partition.value is None:
            return iter(())
        config = read_config(self._options, self._schema, self._predicate)
        return read_tasks(partition.value, config)


class PushingKafkaBatchReader(KafkaBatchReader):
    """The reader in sessions where each query has a plan of its own (`kafka_ds.source.session.optimizer`): it takes
    filters.

    It is a class of its own because Spark checks for the method. ``is_rules``: the rule made it, not Spark;
    ``with_sizes``: it asks how large the rows are, for a join.
    """

    def __init__(
        self,
        options: Options,
        schema: pa.Schema,
        *,
        slots: int | None = None,
        is_rules: bool,
        with_sizes: bool = False,
    ) -> None:
        super().__init__(options, schema, slots=slots)
        self._is_rules = is_rules
        self._with_sizes = with_sizes
        self._has_filters = False

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that can be applied exactly; return the rest."""
        self._has_filters = True
        self._predicate, refused = pushed(filters, self._predicate)
        return refused

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the plan; one that cannot be read if the rule is still to ask."""
        if self._has_filters and not self._is_rules:
            return [PlaceholderPartition()]
        return super().partitions()
