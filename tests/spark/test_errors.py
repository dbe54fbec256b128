"""What a user reads when Spark fails."""

import pytest

from timerwheel.spark_jobs.errors import JobError
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
