"""What unit tests share."""

from collections.abc import Iterator

import pytest

from timerwheel.store.index import Index


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """An index for the tests of a module, which undo what they write."""
    index = Index(tmp_path_factory.mktemp("index") / "index", 1 << 28)
    yield index
    index.close()
