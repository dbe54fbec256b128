"""The formats that Spark gets: `commitlog`, `timerwheel` and `timerwheel.delivered`.

Programs with a session of their own call `register` once; `spark_jobs.session` does it for the commands.
"""

from pyspark.sql import SparkSession

from timerwheel.spark_jobs.delivered.source import DeliveredSource
from timerwheel.spark_jobs.log_source import CommitLogSource
from timerwheel.spark_jobs.schedule.sink import WheelSink

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register all formats with a session, and let Python sources have the conditions of queries.

    Spark refuses to read from a source that takes conditions while it may not give it any.
    """
    for source in (CommitLogSource, DeliveredSource, WheelSink):
        spark.dataSource.register(source)
    spark.conf.set(PUSHDOWN, "true")
