"""Metrics under Kafka's names: requests by API and version, and the network."""
