"""The console under the rules of axe-core: every list, panel and dialog, light and dark, wide and narrow."""

import hashlib
import itertools
import re
import signal
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from tests.harness.accessibility import AXE, violations
from tests.harness.browser import PATIENCE_MS, chromium, looking
from tests.harness.browser_seed import ask, fail, fill, send
from tests.harness.processes import serving

expect.set_options(timeout=PATIENCE_MS)
LISTS = {
    "messages": "number",
    "messages?state=delivered&topic=orders": "order 11",
    "messages?state=any&key=twice": "scheduled",
    "messages?topic=nowhere&tag=vip": "No message meets all of this",
    "messages?state=recalled": "listed for a topic or a key",
    "messages?state=lost&topic=x": "give scheduled, delivered or recalled",
    "topics": "reminders",
    "topics?find=nothing": "None contains",
    "groups": "closers",
    "letters?group=orders/closers": "no database",
    "subscriptions": "hook",
    "schedules": "daily",
}
ACTIONS = {  # the dialog that each button opens, in the list where it is
    "messages": ["Send a test message", "Token", "Recall many"],
    "groups": ["New group"],
    "subscriptions": ["New subscription"],
    "schedules": ["New schedule"],
}
PANELS = {  # the dialogs that the buttons of a panel open
    "topic:orders": ["Purge", "Delete"],
    "group:orders/closers": ["Rewind", "Delete"],
    "subscription:hook": ["Edit", "Delete"],
    "schedule:daily": ["Edit", "Delete"],
}
WIDE, NARROW = (1440, "light"), (390, "dark")


def looks(usual):
    """Parameters of a test: this look, and in `make torture` the others."""
    others = [look for look in itertools.product((1440, 390), ("light", "dark")) if look != usual]
    more = [pytest.param(look, marks=pytest.mark.torture) for look in others]
    return pytest.mark.parametrize("look", [usual, *more], ids=str)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A service with something of everything, and what needs attention."""
    chromium()  # or there is nothing to start it for
    with serving(tmp_path_factory.mktemp("axe") / "data") as running:
        fill(running.url)
        for delay in ("1ms", "1d"):
            send(running.url, "orders", body='{"order": 17}', delay=delay, keys="twice", tags="vip")
        yield running.url


@contextmanager
def shown(browser, url, look):
    """The page in one of the looks, with something in each of its parts."""
    width, scheme = look
    with looking(browser, url, width=width, height=900, scheme=scheme, expected=("status of 400",)) as page:
        expect(page.locator("#stat-next")).to_have_text(re.compile(r"\d"))
        expect(page.locator("#attention")).to_be_visible()
        yield page


def check(page, where, place=None):
    found = violations(page, place)
    assert not found, f"{where}: {found}"


@looks(WIDE)
def test_every_list_keeps_the_rules(browser, url, look):
    with shown(browser, url, look) as page:
        check(page, "the page")
        for address, words in LISTS.items():
            page.goto(f"{url}/#{address}")
            panel = page.get_by_role("tabpanel")
            expect(panel).to_contain_text(words)
            expect(panel.locator("[aria-busy]")).to_have_count(0)
            check(page, address, "#lists")


@looks(NARROW)
def test_every_panel_and_dialog_keeps_the_rules(browser, url, look):
    letter = ask(url, "GET", "/v1/topics/orders/groups/closers/dead-letters")["letters"][0]["message"]
    keyed = ask(url, "GET", "/v1/messages?key=twice")["messages"]
    with shown(browser, url, look) as page:
        dialogs = page.get_by_role("dialog")
        for name, buttons in ACTIONS.items():
            page.goto(f"{url}/#{name}")
            for button in buttons:
                page.get_by_role("button", name=button).first.click()
                expect(dialogs).to_have_count(1)
                check(page, button, "dialog")
                page.keyboard.press("Escape")
                expect(dialogs).to_have_count(0)
        for message in (letter, *keyed):
            page.goto(f"{url}/#messages?open=message:{message['id']}")
            expect(dialogs).to_contain_text(message["id"])
            page.get_by_text("History").click()
            expect(dialogs.locator(".timeline li").first).to_be_visible()
            check(page, f"a message that is {message['state']}", "dialog")
            page.keyboard.press("Escape")
            expect(dialogs).to_have_count(0)
        for panel, buttons in PANELS.items():
            page.goto(f"{url}/#topics?open={panel}")
            expect(dialogs).to_have_count(1)
            check(page, panel, "dialog")
            for button in buttons:
                dialogs.first.get_by_role("button", name=button).click()
                expect(dialogs).to_have_count(2)
                check(page, f"{button} in {panel}", "dialog:last-of-type")
                page.keyboard.press("Escape")
                expect(dialogs).to_have_count(1)
            page.keyboard.press("Escape")
            expect(dialogs).to_have_count(0)


@looks(NARROW)
def test_notices_and_the_page_of_a_service_that_is_away_keep_the_rules(browser, tmp_path, look):
    width, scheme = look
    with (
        serving(tmp_path / "data") as running,
        looking(browser, running.url, width=width, scheme=scheme, expected=("ERR_", "status of 503")) as page,
    ):
        send(running.url, "noticed", delay="1ms")
        fail(running.url, "noticed", "readers", count=1)
        panel = page.get_by_role("tabpanel")
        panel.get_by_role("button", name="Send 1,000 demo messages").click()
        expect(page.get_by_text("Sent to the topic demo")).to_be_visible()
        page.get_by_label("Due from").fill("2030-01-02T00:00:00")
        page.get_by_label("Due until").fill("2030-01-01T00:00:00")
        page.get_by_role("button", name="Find").click()
        expect(page.get_by_text("The time ends before it begins.")).to_be_visible()
        check(page, "notices")
        running.end(signal.SIGTERM)
        expect(page.locator("#state")).to_have_text("not connected")
        expect(page.locator("#trouble")).to_be_visible()
        check(page, "a service that is away")


def test_axe_core_is_the_release_that_its_page_names_unchanged_and_with_its_licence():
    document = (AXE.parent / "README.md").read_text()
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() in document
    version = re.search(r"axe-core\) ([0-9.]+) ", document)[1]
    assert f"axe v{version}\n" in AXE.read_text()[:100]
    assert "Mozilla Public License, version 2.0" in (AXE.parent / "LICENSE.txt").read_text()
