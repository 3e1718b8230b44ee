"""Shell: a strategy for Spark's planner: rows are copied once on their way out of Arrow, not twice.

Spark puts a projection above each row-based scan, to have the rows in its own format. Those of a Python source have it
already, so that projection copies each row again for nothing: a scan of 600,000 rows takes 0.71 s of CPU without it,
0.87 s with it. The strategy takes Spark's own plan and leaves the projection out if it does nothing else. As in
`optimizer` it is Java, compiled in the driver; where it cannot be installed, rows are copied twice.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kafka_ds.source.session.janino import compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGER = logging.getLogger("kafka_ds.source")
CLASS_NAME: Final = "kafka_ds.Unprojected"
# Versions in which a Python source's rows are known to be Spark's own.
VERSIONS: Final = ("4.1.", "4.2.")

JAVA: Final = r"""
package kafka_ds;

import java.lang.reflect.Field;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import scala.collection.immutable.Seq;

public class Unprojected extends SparkStrategy {
  private static final String FORMAT = "kafka_ds";
  private static final Seq NOTHING =
      scala.jdk.javaapi.CollectionConverters.asScala(new java.util.ArrayList()).toList();
  private final SparkStrategy sparks;
  private final Field shortName;

  public Unprojected(SparkStrategy sparks) throws Exception {
    this.sparks = sparks;
    shortName = PythonScan.class.getDeclaredField("shortName");
    shortName.setAccessible(true);
  }

  public Seq apply(LogicalPlan plan) {
    if (!isOurs(plan)) {
      return NOTHING;
    }
    Seq found = sparks.apply(plan);
    if (found.length() != 1 || !(found.apply(0) instanceof ProjectExec)) {
      return found;
    }
    ProjectExec project = (ProjectExec) found.apply(0);
    SparkPlan below = project.child();
    boolean isScan = below instanceof BatchScanExec || below instanceof MicroBatchScanExec;
    if (!isScan || !same(project.projectList(), below.output())) {
      return found;
    }
    java.util.List bare = java.util.Collections.singletonList(below);
    return scala.jdk.javaapi.CollectionConverters.asScala(bare).toList();
  }

  /* Whether it is a scan of ours below nothing but projections. */
  private boolean isOurs(LogicalPlan plan) {
    LogicalPlan node = plan;
    while (node instanceof Project) {
      node = ((Project) node).child();
    }
    Scan scan = null;
    if (node instanceof DataSourceV2ScanRelation) {
      scan = ((DataSourceV2ScanRelation) node).scan();
    } else if (node instanceof StreamingDataSourceV2ScanRelation) {
      scan = ((StreamingDataSourceV2ScanRelation) node).scan();
    }
    if (!(scan instanceof PythonScan)) {
      return false;
    }
    try {
      return FORMAT.equalsIgnoreCase((String) shortName.get(scan));
    } catch (IllegalAccessException problem) {
      throw new IllegalStateException(problem);
    }
  }

  private static boolean same(Seq projected, Seq output) {
    boolean equal = projected.length() == output.length();
    for (int i = 0; equal && i < output.length(); i++) {
      Object one = projected.apply(i);
      equal = one instanceof Attribute
          && ((Attribute) one).exprId().equals(((Attribute) output.apply(i)).exprId());
    }
    return equal;
  }
}
"""


def install(spark: SparkSession) -> bool:
    """Give the session the strategy; whether it has it now."""
    session = getattr(spark, "_jsparkSession", None)
    jvm = getattr(spark, "_jvm", None)
    if session is None or jvm is None or not spark.version.startswith(VERSIONS):
        return False
    # What py4j raises depends on where it fails; in any case the source works without the strategy.
    try:
        methods = session.experimental()
        present = [
            methods.extraStrategies().apply(i) for i in range(methods.extraStrategies().size())
        ]
        if any(each.getClass().getName() == CLASS_NAME for each in present):
            return True
        listed = jvm.java.util.ArrayList()
        for each in (_compiled(spark, session), *present):
            listed.add(each)
        converters = jvm.scala.jdk.javaapi.CollectionConverters
        getattr(methods, "extraStrategies_$eq")(converters.asScala(listed).toSeq())
    except Exception as problem:  # noqa: BLE001
        LOGGER.info("this Spark does not take the planner's strategy of kafka_ds: %s", problem)
        return False
    return True


def _compiled(spark: Any, session: Any) -> Any:
    """An instance of the strategy, compiled in the driver, around Spark's own."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    made = compiled(spark, JAVA, CLASS_NAME)
    types, values = (
        gateway.new_array(jvm.java.lang.Class, 1),
        gateway.new_array(jvm.java.lang.Object, 1),
    )
    types[0] = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.SparkStrategy")
    values[0] = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy(session)
    return made.getConstructor(types).newInstance(values)
