"""The Spark session of the jobs: its start, its Java, its classes, its progress."""
