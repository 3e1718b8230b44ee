"""Shell: a Spark catalog in which topics are tables: ``SELECT … FROM kafka.orders``.

Each reference to a table is a scan of its own. VERSION AS OF and TIMESTAMP AS OF are the source's options asOfVersion
and asOfTimestamp. The catalog is read-only: topics are created, altered and deleted with Kafka's tools. It is a Java
class, compiled in the driver by Janino; it asks this process for the names through py4j. A session has its own
catalogs: after `newSession()` call `topic_catalog` again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kafka_ds.client.cluster import Cluster
from kafka_ds.client.settings import parse_settings
from kafka_ds.errors import ClientError, OptionError
from kafka_ds.protocol.errors import KafkaError
from kafka_ds.source.pyspark_version import check_pyspark
from kafka_ds.source.session.janino import compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "kafka"
CLASS_NAME: Final = "kafka_ds.TopicCatalog"
# The first Java with static methods of interfaces, which the class calls; Spark itself needs a later one.
JAVA_VERSION: Final = 8
SERVERS = "kafka.bootstrap.servers"

JAVA: Final = r"""
package kafka_ds;

import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class TopicCatalog implements TableCatalog {
  private static final String FORMAT = "kafka_ds";
  private final String name;
  private final Map options;
  private final Function topics;

  /* `topics` returns lines: an error, or an empty line and then the name of each topic. */
  public TopicCatalog(String name, Map options, Function topics) {
    this.name = name;
    this.options = merged(options, new TreeMap());
    this.topics = topics;
  }

  public void initialize(String name, CaseInsensitiveStringMap options) {
  }

  public String name() {
    return name;
  }

  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length > 0) {
      throw new NoSuchNamespaceException(namespace);
    }
    String[] names = names();
    Identifier[] found = new Identifier[names.length];
    for (int i = 0; i < names.length; i++) {
      found[i] = Identifier.of(namespace, names[i]);
    }
    return found;
  }

  private String[] names() {
    String[] lines = ((String) topics.apply("")).split("\n", -1);
    if (!lines[0].isEmpty()) {
      throw new IllegalArgumentException("catalog " + name + ": " + lines[0]);
    }
    return (String[]) Arrays.copyOfRange(lines, 1, lines.length);
  }

  /* The options of both, whose names ignore case as the source's do; those of `later` win. */
  private static Map merged(Map first, Map later) {
    Map all = new TreeMap(String.CASE_INSENSITIVE_ORDER);
    all.putAll(first);
    all.putAll(later);
    return all;
  }

  public boolean tableExists(Identifier wanted) {
    return wanted.namespace().length == 0
        && Arrays.asList(names()).contains(wanted.name());
  }

  public Table loadTable(Identifier wanted) {
    return loaded(wanted, new TreeMap());
  }

  /* VERSION AS OF. */
  public Table loadTable(Identifier wanted, String version) {
    Map then = new TreeMap();
    then.put("asOfVersion", version);
    return loaded(wanted, then);
  }

  /* TIMESTAMP AS OF, in microseconds. */
  public Table loadTable(Identifier wanted, long timestamp) {
    Map then = new TreeMap();
    then.put("asOfTimestamp", String.valueOf(Math.floorDiv(timestamp, 1000L)));
    return loaded(wanted, then);
  }

  private Table loaded(Identifier wanted, Map then) {
    if (!tableExists(wanted)) {
      // Not NoSuchTableException: Spark would then report that no data source has the catalog's name.
      throw new IllegalArgumentException("catalog " + name + ": there is no topic " + missing(wanted));
    }
    Map given = merged(options, then);
    given.put("subscribe", wanted.name());
    StructType schema = source().inferSchema(new CaseInsensitiveStringMap(given));
    return new TopicTable(name + "." + wanted.name(), schema, given);
  }

  /* Without backticks, SQL reads the dots of a topic's name as namespaces. */
  private String missing(Identifier wanted) {
    String whole = wanted.name();
    for (int i = wanted.namespace().length - 1; i >= 0; i--) {
      whole = wanted.namespace()[i] + "." + whole;
    }
    if (wanted.namespace().length > 0 && Arrays.asList(names()).contains(whole)) {
      return whole + "; use backticks: " + name + ".`" + whole + "`";
    }
    return whole;
  }

  private static PythonDataSourceV2 source() {
    PythonDataSourceV2 made = new PythonDataSourceV2();
    made.setShortName(FORMAT);
    return made;
  }

  public Table createTable(Identifier wanted, TableInfo made) {
    throw readOnly();
  }

  public Table alterTable(Identifier wanted, TableChange[] changes) {
    throw readOnly();
  }

  public boolean dropTable(Identifier wanted) {
    throw readOnly();
  }

  public void renameTable(Identifier before, Identifier after) {
    throw readOnly();
  }

  private UnsupportedOperationException readOnly() {
    return new UnsupportedOperationException(
        "catalog " + name + ": topics are created, altered and deleted with Kafka's tools");
  }

  /* A topic. Each scan has a new source, because a source keeps its first options. */
  public static class TopicTable implements SupportsRead {
    private final String name;
    private final StructType schema;
    private final Map options;

    public TopicTable(String name, StructType schema, Map options) {
      this.name = name;
      this.schema = schema;
      this.options = options;
    }

    public String name() {
      return name;
    }

    public StructType schema() {
      return schema;
    }

    public Set capabilities() {
      return table(options).capabilities();
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap more) {
      Map all = merged(options, refusing(more));
      return ((SupportsRead) table(all)).newScanBuilder(new CaseInsensitiveStringMap(all));
    }

    /* A query's options cannot name topics, nor change the columns, which Spark knows before it has the options. */
    private Map refusing(CaseInsensitiveStringMap more) {
      String[] others = {"subscribe", "subscribePattern", "assign"};
      for (int i = 0; i < others.length; i++) {
        if (more.containsKey(others[i])) {
          throw new IllegalArgumentException(
              "option '" + others[i] + "' is not valid for table " + name);
        }
      }
      String[] columns = {"columns", "includeHeaders"};
      for (int i = 0; i < columns.length; i++) {
        if (more.containsKey(columns[i]) && !more.get(columns[i]).equals(options.get(columns[i]))) {
          throw new IllegalArgumentException(
              "option '" + columns[i] + "' changes the columns of table " + name
              + ": give it to topic_catalog(), not to a query");
        }
      }
      return more.asCaseSensitiveMap();
    }

    private Table table(Map given) {
      return source().getTable(schema, new Transform[0], given);
    }
  }
}
"""


class TopicLister:
    """The function that the Java catalog calls in this process."""

    def __init__(self, brokers: str, options: Mapping[str, str]) -> None:
        self._brokers = brokers
        self._settings = parse_settings(options)

    def apply(self, _: str) -> str:
        """An error, or an empty line and then the name of each topic that is not internal."""
        try:
            with Cluster(self._settings) as cluster:
                topics = cluster.topics(None)
        except (ClientError, KafkaError) as problem:
            # Py4J would make the traceback of an exception its message.
            return f"option '{SERVERS}' ({self._brokers}): {problem}".replace("\n", " ")
        names = sorted(name for name, topic in topics.items() if not topic.internal)
        return "\n".join(["", *names])

    class Java:
        implements = ("java.util.function.Function",)


def topic_catalog(
    spark: SparkSession,
    brokers: str,
    *,
    name: str = NAME,
    options: Mapping[str, str] | None = None,
) -> None:
    """Add a catalog to the session in which the topics of these brokers are tables.

    ``options`` are the source's for all (``lake``, ``isolation``, ``includeHeaders``, …); a query adds its own by
    ``SELECT … FROM kafka.orders WITH (…)``. The format ``kafka_ds`` must be registered.

    Raises:
        OptionError: the brokers' address or another ``kafka.*`` option is invalid, or an option names topics.
        RuntimeError: a session of Spark Connect, whose catalogs are out of reach.
        ImportError: this PySpark is too old.
    """
    check_pyspark()
    session = getattr(spark, "_jsparkSession", None)
    jvm = getattr(spark, "_jvm", None)
    if session is None or jvm is None:
        raise RuntimeError(
            "topic_catalog() does not support Spark Connect, whose client cannot add a catalog: use "
            "spark.read.format('kafka_ds'), or CREATE TEMPORARY VIEW … USING kafka_ds OPTIONS (…)"
        )
    from pyspark.java_gateway import ensure_callback_server_started

    everywhere = {n: v for n, v in (options or {}).items() if n.lower() != SERVERS}
    everywhere[SERVERS] = brokers
    named = [n for n in everywhere if n.lower() in ("subscribe", "subscribepattern", "assign")]
    if named:
        raise OptionError(f"option '{named[0]}' is not valid for a catalog, which has all topics")
    topics = TopicLister(brokers, everywhere)
    gateway: Any = spark.sparkContext._gateway
    started: Any = ensure_callback_server_started
    started(gateway)
    given = jvm.java.util.HashMap()
    for key, value in everywhere.items():
        given.put(key, value)
    classes = gateway.new_array(jvm.java.lang.Class, 3)
    for at, each in enumerate(("lang.String", "util.Map", "util.function.Function")):
        classes[at] = jvm.java.lang.Class.forName(f"java.{each}")
    # Py4J passes Python objects only as arguments of calls, not as elements of arrays.
    arguments = jvm.java.util.ArrayList()
    for argument in (name, given, topics):
        arguments.add(argument)
    made = compiled(spark, JAVA, CLASS_NAME, java_version=JAVA_VERSION)
    catalog = made.getConstructor(classes).newInstance(arguments.toArray())
    _catalogs_of(session).put(name, catalog)


def _catalogs_of(session: Any) -> Any:
    """The session's catalogs by name: by its API, Spark only creates catalogs from class names."""
    manager = session.sessionState().catalogManager()
    for field in manager.getClass().getDeclaredFields():
        if field.getName().endswith("catalogs"):
            field.setAccessible(True)
            return field.get(manager)
    raise RuntimeError(
        "this version of Spark is not supported: CatalogManager has no field 'catalogs'"
    )
