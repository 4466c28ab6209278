"""The gateway: the front of `tidegate.server` before the brokers of an Apache Kafka cluster (decision 0140).

Each client connection has a connection of its own to the broker behind it. Requests are forwarded as they came, and
responses as they are; only what has to change is read: addresses, sizes of fetches, and throttle times.
"""
