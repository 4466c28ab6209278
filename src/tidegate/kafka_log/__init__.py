"""Apache Kafka's request log (`kafka.request.logger` at DEBUG) as a usage record: `tidegate import`."""
