"""Kafka's client metrics in Prometheus as a source for quotas, in the base install: no arrays, no Spark."""
