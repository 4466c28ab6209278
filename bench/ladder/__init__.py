"""The ladder: the same clients against a real Apache Kafka and against `tidegate serve`, in turn, in one run."""
