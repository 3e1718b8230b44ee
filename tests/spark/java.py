"""How the JVMs of tests run."""

# Most queries of tests run once: to compile them well, and to collect garbage beside them, takes longer than they do.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
