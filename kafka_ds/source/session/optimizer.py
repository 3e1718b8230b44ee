"""Shell: a rule for Spark's optimizer: each query has a plan of its own, and reads only the columns that it uses.

Spark 4.1 and 4.2 keep a Python source's plan on an object that all queries of one `load()` share, and pass it no
columns and no statistics. The rule gives every scan an object of its own, plans it from the scan's own filters with the
columns above it, and asks for its size where there is a join. It is Java, compiled in the driver by Spark's own
compiler (Janino) and handed over by `ExperimentalMethods.extraOptimizations`; executors run nothing of it. A Spark that
lacks something it needs runs without it, and then no filter is ever taken.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kafka_ds.source.session.janino import compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

LOGGER = logging.getLogger("kafka_ds.source")
CLASS_NAME: Final = "kafka_ds.OwnPlan"

# Spark plans a query with filters when it pushes them down, before the rule and for nothing: only the rule's call plans
# (`is_marked`), and Spark's gets a partition that cannot be read (`batch.PlaceholderPartition`). Spark also copies a
# join's side into a subquery, with which it filters the other side (dynamic partition pruning, runtime filters), after
# its push-down: such a copy gets its scan's plan, so that both read the same rows.

JAVA: Final = r"""
package kafka_ds;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.OptionalLong;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonFilterPushdownResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.Some;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

public class OwnPlan extends Rule {
  private static final String FORMAT = "kafka_ds";
  private static final String CHEAPEST = "partition";
  private static final String PLAN = "<kafka_ds: ";
  private static final String SIZE = "<kafka_ds bytes: ";
  private final Map done = Collections.synchronizedMap(new WeakHashMap());
  private final Field ds, shortName, options, schema, filters, instance;
  private final Constructor relation = DataSourceV2ScanRelation.class.getConstructors()[0];

  public OwnPlan() throws Exception {
    ds = field(PythonScan.class, "ds");
    shortName = field(PythonScan.class, "shortName");
    options = field(PythonScan.class, "options");
    schema = field(PythonScan.class, "outputSchema");
    filters = field(PythonScan.class, "supportedFilters");
    instance = field(PythonDataSourceV2.class, "dataSourceInPython");
  }

  private static Field field(Class owner, String name) throws NoSuchFieldException {
    Field found = owner.getDeclaredField(name);
    found.setAccessible(true);
    return found;
  }

  public TreeNode apply(TreeNode plan) {
    try {
      // The scans themselves before their copies, which read no more columns.
      Made made = new Made(plan.containsPattern(TreePattern.JOIN()));
      return withSubqueries(visit((LogicalPlan) plan, null, made), made);
    } catch (RuntimeException problem) {
      throw problem;
    } catch (Exception problem) {
      throw new RuntimeException(problem);
    }
  }

  /* What each scan of a query has become, and whether their sizes matter. */
  public static class Made extends IdentityHashMap {
    final boolean sized;

    public Made(boolean sized) {
      this.sized = sized;
    }
  }

  /* `used` are the columns that the plan above asks for, null for all. */
  private LogicalPlan visit(LogicalPlan plan, AttributeSet used, Made made) throws Exception {
    if (plan instanceof DataSourceV2ScanRelation) {
      return replaced((DataSourceV2ScanRelation) plan, used, made);
    }
    AttributeSet below = null;
    if (plan instanceof Project) {
      below = plan.references();
    } else if (plan instanceof org.apache.spark.sql.catalyst.plans.logical.Filter && used != null) {
      below = used.$plus$plus(plan.references());
    }
    Seq children = plan.children();
    Object[] visited = new Object[children.length()];
    boolean changed = false;
    for (int i = 0; i < visited.length; i++) {
      visited[i] = visit((LogicalPlan) children.apply(i), below, made);
      changed = changed || visited[i] != children.apply(i);
    }
    if (!changed) {
      return plan;
    }
    return (LogicalPlan) plan.withNewChildren(seq(visited));
  }

  /* Also in subqueries: after the push-down the optimizer makes some of its own, out of copies of a join's side. */
  private LogicalPlan withSubqueries(LogicalPlan plan, Made made) throws Exception {
    if (!plan.containsPattern(TreePattern.PLAN_EXPRESSION())) {
      return plan;
    }
    Seq children = plan.children();
    Object[] visited = new Object[children.length()];
    for (int i = 0; i < visited.length; i++) {
      visited[i] = withSubqueries((LogicalPlan) children.apply(i), made);
    }
    LogicalPlan above = (LogicalPlan) plan.withNewChildren(seq(visited));
    return (LogicalPlan) above.mapExpressions(new Subqueries(this, made));
  }

  Expression within(Expression expression, Made made) throws Exception {
    if (!expression.containsPattern(TreePattern.PLAN_EXPRESSION())) {
      return expression;
    }
    Seq children = expression.children();
    Object[] visited = new Object[children.length()];
    for (int i = 0; i < visited.length; i++) {
      visited[i] = within((Expression) children.apply(i), made);
    }
    Expression above = (Expression) expression.withNewChildren(seq(visited));
    if (!(above instanceof PlanExpression)
        || !(((PlanExpression) above).plan() instanceof LogicalPlan)) {
      return above;
    }
    LogicalPlan below = (LogicalPlan) ((PlanExpression) above).plan();
    LogicalPlan planned = withSubqueries(visit(below, null, made), made);
    if (planned == below) {
      return above;
    }
    return ((PlanExpression) above).withNewPlan(planned);
  }

  public static class Subqueries extends scala.runtime.AbstractFunction1 {
    private final OwnPlan rule;
    private final Made made;

    public Subqueries(OwnPlan rule, Made made) {
      this.rule = rule;
      this.made = made;
    }

    public Object apply(Object expression) {
      try {
        return rule.within((Expression) expression, made);
      } catch (RuntimeException problem) {
        throw problem;
      } catch (Exception problem) {
        throw new RuntimeException(problem);
      }
    }
  }

  private LogicalPlan replaced(DataSourceV2ScanRelation node, AttributeSet used, Made made)
      throws Exception {
    Object old = node.scan();
    if (!(old instanceof PythonScan) || done.containsKey(old)
        || !FORMAT.equalsIgnoreCase((String) shortName.get(old))) {
      return node;
    }
    StructType whole = (StructType) schema.get(old);
    Filter[] pushed = (Filter[]) filters.get(old);
    java.util.List output = new java.util.ArrayList();
    StructType wanted = pruned(whole, node.output(), used, pushed, output);
    Object known = made.get(old);
    if (known != null && covers((StructType) schema.get(known), wanted)) {
      StructType columns = (StructType) schema.get(known);
      output.clear();
      for (int i = 0; i < columns.fields().length; i++) {
        output.add(node.output().apply(whole.fieldIndex(columns.fields()[i].name())));
      }
      return with(node, known, output);
    }
    String name = (String) shortName.get(old);
    CaseInsensitiveStringMap given = (CaseInsensitiveStringMap) options.get(old);
    PythonDataSourceCreationResult created = ((PythonDataSourceV2) ds.get(old))
        .getOrCreateDataSourceInPython(name, given, new Some(whole));
    PythonDataSourceV2 own = new PythonDataSourceV2();
    own.setShortName(name);
    instance.set(own, created);
    PythonDataSourceReadInfo read = null;
    StructType asked = marked(wanted, made.sized);
    if (pushed.length > 0) {
      Option found = own.source().pushdownFiltersInPython(created, asked, pushed);
      PythonFilterPushdownResult result = (PythonFilterPushdownResult) found.get();
      for (Iterator each = result.isFilterPushed().iterator(); each.hasNext();) {
        if (!Boolean.TRUE.equals(each.next())) {
          throw new IllegalStateException("kafka_ds does not take a filter that it took before");
        }
      }
      read = result.readInfo();
    } else if (made.sized) {
      read = own.source().createReadInfoInPython(created, asked, false);
    }
    if (read != null) {
      own.setReadInfo(read);
    }
    PythonScan fresh = new Described(own, name, wanted, given, pushed, said(read, PLAN), said(read, SIZE));
    done.put(fresh, Boolean.TRUE);
    made.put(old, fresh);
    return with(node, fresh, output);
  }

  private static boolean covers(StructType columns, StructType wanted) {
    return java.util.Arrays.asList(columns.fieldNames())
        .containsAll(java.util.Arrays.asList(wanted.fieldNames()));
  }

  private LogicalPlan with(DataSourceV2ScanRelation node, Object scan, java.util.List output)
      throws Exception {
    Object[] arguments = new Object[node.productArity()];
    for (int i = 0; i < arguments.length; i++) {
      arguments[i] = node.productElement(i);
    }
    arguments[1] = scan;
    arguments[2] = seq(output.toArray());
    LogicalPlan changed = (LogicalPlan) relation.newInstance(arguments);
    changed.copyTagsFrom(node);
    return changed;
  }

  /* The schema as Python gets it from this rule alone. */
  private static StructType marked(StructType wanted, boolean sized) {
    Metadata mark = new MetadataBuilder().putBoolean(OwnPlan.class.getName(), sized).build();
    StructField[] fields = (StructField[]) wanted.fields().clone();
    fields[0] = new StructField(fields[0].name(), fields[0].dataType(), fields[0].nullable(), mark);
    return new StructType(fields);
  }

  /* What the first partition says of the plan behind these words; null if nothing. */
  private static String said(PythonDataSourceReadInfo info, String words) {
    if (info == null) {
      return null;
    }
    byte[] first = (byte[]) info.partitions().apply(0);
    String text = new String(first, java.nio.charset.StandardCharsets.ISO_8859_1);
    int start = text.indexOf(words);
    int end = start < 0 ? -1 : text.indexOf('>', start);
    return end < 0 ? null : text.substring(start + words.length(), end);
  }

  public static class Described extends PythonScan implements SupportsReportStatistics {
    private final String plan, size;

    public Described(PythonDataSourceV2 own, String name, StructType wanted,
        CaseInsensitiveStringMap given, Filter[] pushed, String plan, String size) {
      super(own, name, wanted, given, pushed);
      this.plan = plan;
      this.size = size;
    }

    public String description() {
      return plan == null ? super.description() : super.description() + " [" + plan + "]";
    }

    public Statistics estimateStatistics() {
      return new Size(size == null ? OptionalLong.empty() : OptionalLong.of(Long.parseLong(size)));
    }
  }

  /* Rows are not counted: offsets are none. */
  public static class Size implements Statistics {
    private final OptionalLong bytes;

    public Size(OptionalLong bytes) {
      this.bytes = bytes;
    }

    public OptionalLong sizeInBytes() {
      return bytes;
    }

    public OptionalLong numRows() {
      return OptionalLong.empty();
    }
  }

  /* The columns in use or filtered by, the cheapest where none is; `output` takes their attributes. */
  private static StructType pruned(StructType whole, Seq attributes, AttributeSet used,
      Filter[] pushed, java.util.List output) {
    StructField[] fields = whole.fields();
    java.util.Set filtered = new java.util.HashSet();
    for (int i = 0; i < pushed.length; i++) {
      filtered.addAll(java.util.Arrays.asList(pushed[i].references()));
    }
    java.util.List kept = new java.util.ArrayList();
    for (int i = 0; i < fields.length; i++) {
      Attribute attribute = (Attribute) attributes.apply(i);
      if (used == null || used.contains(attribute) || filtered.contains(fields[i].name())) {
        kept.add(fields[i]);
        output.add(attribute);
      }
    }
    for (int i = 0; kept.isEmpty() && i < fields.length; i++) {
      if (i == fields.length - 1 || CHEAPEST.equalsIgnoreCase(fields[i].name())) {
        kept.add(fields[i]);
        output.add(attributes.apply(i));
      }
    }
    return new StructType((StructField[]) kept.toArray(new StructField[0]));
  }

  private static Seq seq(Object[] items) {
    return scala.jdk.javaapi.CollectionConverters.asScala(java.util.Arrays.asList(items)).toList();
  }
}
"""


def is_marked(schema: StructType) -> bool:
    """Whether the rule asks for a reader of these columns, and not Spark's own push-down before it."""
    return any(CLASS_NAME in field.metadata for field in schema.fields)


def wants_sizes(schema: StructType) -> bool:
    """Whether the rule asks how large the rows are, too."""
    return any(field.metadata.get(CLASS_NAME) is True for field in schema.fields)


def install(spark: SparkSession) -> bool:
    """Give the session the rule; whether it has it now (or does not need it).

    A Spark Connect client has no session of its own to give it to.
    """
    session = getattr(spark, "_jsparkSession", None)
    jvm = getattr(spark, "_jvm", None)
    if session is None or jvm is None:
        return False
    # What py4j raises depends on where it fails; in any case the source works without the rule.
    try:
        methods = session.experimental()
        rules = methods.extraOptimizations()
        present = [rules.apply(i) for i in range(rules.size())]
        if any(rule.getClass().getName() == CLASS_NAME for rule in present):
            return True
        rule = _made(spark)
        listed = jvm.java.util.ArrayList()
        for each in (*present, rule):
            listed.add(each)
        converters = jvm.scala.jdk.javaapi.CollectionConverters
        getattr(methods, "extraOptimizations_$eq")(converters.asScala(listed).toSeq())
    except Exception as problem:  # noqa: BLE001
        LOGGER.warning(
            "this Spark does not take the optimizer rule of kafka_ds, so filters are not pushed down "
            "(option 'where' is), and a DataFrame or view shows the rows of its first query: load() again for newer "
            "ones: %s",
            problem,
        )
        return False
    return True


def _made(spark: Any) -> Any:
    """An instance of the rule."""
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    nothing = gateway.new_array(jvm.java.lang.Class, 0), gateway.new_array(jvm.java.lang.Object, 0)
    made = compiled(spark, JAVA, CLASS_NAME)
    return made.getConstructor(nothing[0]).newInstance(nothing[1])
