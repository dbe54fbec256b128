import pytest

from timerwheel.spark_jobs.storage import shown


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/srv/node-1", "/srv/node-1"),
        ("https://user:secret@example.net/logs", "https://example.net/logs"),
        (
            "zip://one.parquet::https://user:secret@example.net/a.zip",
            "zip://one.parquet::https://example.net/a.zip",
        ),
        ("abfs://lake@acme.dfs.core.windows.net/logs", "abfs://lake@acme.dfs.core.windows.net/logs"),
        ("abfss://lake@acme.dfs.core.windows.net/logs", "abfss://lake@acme.dfs.core.windows.net/logs"),
    ],
)
def test_a_url_is_shown_without_its_password_and_with_its_container(url, expected):
    assert shown(url) == expected
