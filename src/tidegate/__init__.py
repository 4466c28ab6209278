"""Apache Kafka's client quotas in Python: serve them, and replay recorded traffic against quotas not set yet."""

__version__ = "0.2.0"
