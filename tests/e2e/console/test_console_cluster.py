"""The console of a node in front of shards: its lists have what each shard has, and one has the shards."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.harness.browser import PATIENCE_MS, browsing, looking
from tests.harness.browser_seed import ask, send
from tests.harness.processes import serving
from timerwheel.model.shards import shard_of_topic

expect.set_options(timeout=PATIENCE_MS)
SHARDS = 2
TOPICS = ("a", "d")


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


def test_lists_have_what_each_shard_has_and_the_cluster_its_shards(browser: Browser, tmp_path: Path) -> None:
    assert {shard_of_topic(topic, SHARDS) for topic in TOPICS} == set(range(SHARDS))
    with serving(tmp_path / "data", "--shards", SHARDS) as node:
        for topic in TOPICS:
            send(node.url, topic, delay="1h")
            ask(node.url, "PUT", f"/v1/topics/{topic}/groups/workers", {})
        with looking(browser, node.url) as page:
            rows = page.locator("[role=tabpanel]:not([hidden]) tbody tr")
            page.get_by_role("tab", name="Cluster").click()
            expect(rows).to_have_count(SHARDS)
            expect(rows.nth(1)).to_contain_text(re.compile(r"1http://127.0.0.1:\d+alone"))
            expect(page.get_by_role("button", name=re.compile("^Move the lead"))).to_have_count(0)
            for name in ("Messages", "Topics", "Groups"):
                page.get_by_role("tab", name=name).click()
                expect(rows).to_have_count(len(TOPICS))
            expect(page.locator("#stat-pending")).to_have_text("2")
