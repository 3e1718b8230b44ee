"""Ratios against Apache Kafka and Spark's own Kafka source, in the same run on the same machine."""
