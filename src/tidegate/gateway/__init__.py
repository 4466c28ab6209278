"""The gateway: the front of `tidegate.server` before the brokers of an Apache Kafka cluster (decision 0140).

Each client connection has its own connection to the broker. The gateway forwards requests and responses unchanged, and
reads only the fields that it has to change: addresses, sizes of fetches, and throttle times.
"""
