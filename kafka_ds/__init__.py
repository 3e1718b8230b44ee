"""Pure: kafka-ds, the library that broker and Spark data source share."""
