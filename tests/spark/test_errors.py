"""What a user reads when Spark fails."""

import os
import signal

import pytest

from timerwheel.spark_jobs.errors import JobError
from timerwheel.spark_jobs.progress import JobProgress
from timerwheel.spark_jobs.session import plain_errors


def test_an_error_of_java_is_told_with_its_cause(spark):
    def fail():
        with plain_errors():
            spark._jvm.java.io.FileInputStream("/no/such/file")

    with pytest.raises(JobError) as caught:
        fail()
    text = str(caught.value)
    assert text == "Spark failed: java.io.FileNotFoundException: /no/such/file (No such file or directory)"


def test_an_error_of_a_python_task_is_told_with_its_last_line(spark):
    def fail(_batches):
        raise KeyError("colour")

    def run():
        with plain_errors():
            spark.range(1).mapInArrow(fail, "x int").collect()

    with pytest.raises(JobError) as caught:
        run()
    assert str(caught.value) == "Spark failed: KeyError: 'colour'"


def test_one_killed_python_process_does_not_end_a_job(spark, tmp_path):
    mark = tmp_path / "killed"

    def work(batches):
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    assert spark.range(7).mapInArrow(work, "id bigint").count() == 7
    assert mark.exists()


def test_a_python_process_that_is_killed_each_time_is_one_line_with_its_stage_and_what_to_do(spark):
    def work(_batches):
        os.kill(os.getpid(), signal.SIGKILL)

    def run():
        with plain_errors(local=True), JobProgress(spark, show=False).stage("judge"):
            spark.range(1).mapInArrow(work, "id bigint").collect()

    with pytest.raises(JobError) as caught:
        run()
    assert str(caught.value) == (
        "a Python process of Spark was killed in the stage judge, each time that the task was tried; most "
        "often the machine or its container has too little memory: give it more, or use fewer cores, such as "
        "--master local[1]"
    )


def test_a_python_process_that_lacks_memory_says_so(spark):
    def work(_batches):
        raise MemoryError

    def run():
        with plain_errors(local=True):
            spark.range(1).mapInArrow(work, "id bigint").collect()

    with pytest.raises(JobError, match=r"^a Python process of Spark lacked memory: give it more"):
        run()


def test_a_driver_that_lacks_memory_is_one_line(spark):
    def run():
        with plain_errors(local=True), JobProgress(spark, show=False).stage("judge"):
            spark._jvm.java.nio.ByteBuffer.allocate(2**31 - 1)

    with pytest.raises(JobError) as caught:
        run()
    assert str(caught.value) == (
        "Spark's driver lacked memory in the stage judge: give it more with --conf spark.driver.memory=4g"
    )
