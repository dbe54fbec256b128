import pytest
from bench.history import make_log


def test_a_log_is_read_as_rows_of_its_header_fields(spark, tmp_path):
    pending = make_log(tmp_path / "node-1", 80_000, 1_800_000_000_000)
    log = spark.read.format("commitlog").load(str(tmp_path / "node-1"))
    assert log.count() == 80_000
    assert log.where("kind = 'timer'").count() - log.where("origin is not null").count() == pending
