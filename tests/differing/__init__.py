"""The same requests to a real Apache Kafka and to `tidegate serve`."""
