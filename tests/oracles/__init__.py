"""Straightforward ports of Kafka's own classes, to hold the engine against."""
