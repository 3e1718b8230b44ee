"""How the JVMs of tests run."""

# Most queries of tests run once: to compile them well, and to collect garbage beside them, takes longer than they do.
# With one compiler the JVM reserves 48 MiB for code, which Spark and Delta fill: it would drop and compile without end.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
