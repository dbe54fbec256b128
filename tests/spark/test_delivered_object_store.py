"""A stream of delivered messages from logs and an archive in S3, by moto on loopback."""

import asyncio

import pytest
import s3fs

from tests.harness.archiving import run_archive
from tests.harness.delivered import Sink, answers, deliver, node_at, run_query, union
from tests.harness.object_store import BUCKET, object_store
from tests.integration.runtime.test_retention import RETENTION_MS, age
from timerwheel.spark_jobs.formats import register


@pytest.fixture
def store(spark):
    """A fresh server. What plans a stream gets the environment that the formats were registered with."""
    with object_store() as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
            patch.setitem(spark.sparkContext.environment, name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        register(spark)
        yield found
    s3fs.S3FileSystem.clear_instance_cache()
    register(spark)


def copy(store, directory, name):
    """Make the log in the bucket the same as the one on the disk."""
    wanted = {f"{name}/log/{path.name}": path for path in (directory / "log").iterdir()}
    for key, path in wanted.items():
        store.client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
    for key in set(store.names(f"{name}/log/")) - wanted.keys():
        store.client.delete_object(Bucket=BUCKET, Key=key)


@pytest.mark.torture
def test_a_stream_from_s3_has_each_message_once_also_from_an_archive_there(spark, progress, store, tmp_path):
    sink = Sink()
    archive = f"s3://{BUCKET}/archive"

    def query():
        run_query(spark, f"s3://{BUCKET}/node-*", tmp_path / "checkpoint", sink, archive=archive)

    async def live():
        world = node_at(tmp_path / "node-1")
        await world.open(retention_ms=RETENTION_MS, retention_archived_only=True)
        await deliver(world, 0)
        copy(store, world.directory, "node-1")
        await asyncio.to_thread(query)
        read = await answers(world, "node-1")
        assert sink.rows == read
        await deliver(world, 20)
        await world.roll()
        read = await answers(world, "node-1")
        await asyncio.to_thread(run_archive, spark, progress, world.directory, archive)
        assert await age(world) > 0
        copy(store, world.directory, "node-1")
        await asyncio.to_thread(query)
        assert sink.rows == union(read, await answers(world, "node-1"))
        await world.engine.close()

    asyncio.run(live())
