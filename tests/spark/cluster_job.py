"""Replays one directory on a small cluster of processes and prints what came out; run by `test_cluster.py`.

python cluster_job.py DIRECTORY
"""

import json
import sys
from pathlib import Path

from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_on_spark
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.pipeline.spark.session import running_spark


def main() -> None:
    """Replay the quotas in force with two executors of one core each."""
    session = running_spark(app_name="cluster", master="local-cluster[2,1,1024]", rows=0)
    with open_usage(Path(sys.argv[1])) as files, session as spark:
        executors = spark.session.sparkContext.defaultParallelism
        rows = jobs_on_spark(spark, files).replay([in_force_plan()], out=None).entities
    print(json.dumps({"executors": executors, "rows": [*rows]}))


if __name__ == "__main__":
    main()
