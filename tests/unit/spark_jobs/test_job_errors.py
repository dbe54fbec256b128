"""Lost processes and lack of memory: one line with what to do, from the texts that Spark has for them."""

import re

import pytest
from py4j.protocol import Py4JNetworkError

from timerwheel.spark_jobs.errors import job_error, note_stage
from timerwheel.spark_jobs.session import with_retries

LOST = "Job aborted due to stage failure: Task 3 in stage 2.0 failed 4 times, most recent failure: "
TASK = "Lost task 3.3 in stage 2.0 (TID 9) (10.0.0.7 executor {}): "
EXECUTOR = "ExecutorLostFailure (executor 5 exited caused by one of the running tasks) Reason: "
TRACE = "\n\tat org.apache.spark.Thing.run(Thing.scala:1)\nCaused by: java.io.EOFException\n\t... 21 more"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TASK.format("driver")
            + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            "a Python process of Spark was killed in the stage judge, .*--master local",
        ),
        (
            TASK.format("5") + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            "a Python process of Spark was killed in the stage judge, .*spark.executor.memoryOverhead",
        ),
        (
            TASK.format("5") + EXECUTOR + "Command exited with code 137",
            "executor 5 of Spark was killed in the stage judge, .*spark.executor.memoryOverhead",
        ),
        (
            TASK.format("5") + EXECUTOR + "Container killed by YARN for exceeding physical memory limits.",
            "executor 5 of Spark was killed in the stage judge, .*spark.executor.memoryOverhead",
        ),
        (
            TASK.format("5") + EXECUTOR + "Command exited with code 52",
            "executor 5 of Spark lacked memory in the stage judge: .*spark.executor.memory=",
        ),
        (
            TASK.format("5") + EXECUTOR + "Executor heartbeat timed out after 125 s",
            "Spark lost executor 5 in the stage judge, .*: Executor heartbeat timed out after 125 s$",
        ),
        (
            TASK.format("5") + "java.lang.OutOfMemoryError: Java heap space",
            "Spark's executors lacked memory in the stage judge: .*spark.executor.memory=",
        ),
        (
            TASK.format("driver") + "java.lang.OutOfMemoryError: Java heap space",
            "Spark's driver lacked memory in the stage judge: .*spark.driver.memory=",
        ),
        (
            "Total size of results of 9 tasks is bigger than spark.driver.maxResultSize (1024.0 MiB)",
            "the tasks in the stage judge return more than the driver accepts: .*maxResultSize=2g",
        ),
    ],
)
def test_a_lost_process_is_one_line_that_says_what_to_do(text, expected):
    error = RuntimeError(LOST + text + TRACE)
    note_stage(error, "judge")
    note_stage(error, "outer")
    found = str(job_error(error, local="executor driver" in text))
    assert "\n" not in found
    assert re.search(f"^{expected}", found), found


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        # What a heap that is exhausted gives with a local master: Spark ends its process by itself.
        RuntimeError(
            f"org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down{TRACE}"
        ),
    ],
)
def test_a_java_process_that_ended_is_one_line_with_its_stage(error):
    note_stage(error, "survey")
    assert str(job_error(error)) == (
        "Spark's Java process ended in the middle of the job in the stage survey: it was killed, or lacked "
        "memory; give it more with --conf spark.driver.memory=4g"
    )


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local", {}, "local[1,4]"),
        ("local[*]", {}, "local[*,4]"),
        ("local[2]", {"spark.task.maxFailures": "2"}, "local[2,2]"),
        ("local[2,1]", {}, "local[2,1]"),
        ("local-cluster[2,1,1024]", {}, "local-cluster[2,1,1024]"),
        ("spark://head:7077", {}, "spark://head:7077"),
    ],
)
def test_tasks_are_tried_again_with_a_local_master_too(master, conf, expected):
    assert with_retries(master, conf) == expected
