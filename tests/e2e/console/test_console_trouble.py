"""The console in trouble: many tabs, late answers or none, double clicks, and what may break the page."""

import re

import orjson
import pytest
from playwright.sync_api import expect

from tests.harness.browser import PATIENCE_MS, chromium, looking
from tests.harness.browser_seed import ask, send
from tests.harness.processes import serving

expect.set_options(timeout=PATIENCE_MS)
STREAMS_OF_A_BROWSER = 6
# A test says when the page is in the background.
HIDES = """
  window.isHidden = false;
  Object.defineProperty(Document.prototype, "hidden", { get: () => window.isHidden });
"""
HIDE = "(isHidden) => { window.isHidden = isHidden; document.dispatchEvent(new Event('visibilitychange')); }"
KEEPS_NOTHING = """
  for (const name of ["localStorage", "sessionStorage"]) {
    Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
  }
"""
# The timers of a second and more never end: nothing is refreshed by itself.
REFRESHES_NOTHING = """
  const begin = window.setTimeout;
  window.setTimeout = (act, ms = 0) => (ms < 1000 ? begin(act, ms) : 0);
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    chromium()
    with serving(tmp_path_factory.mktemp("console") / "data") as running:
        yield running.url


def click_again(page, place):
    """The second click of a double click, at the middle of the place where the first one was."""
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    page.mouse.down(click_count=2)
    page.mouse.up(click_count=2)


# ---------------------------------------------------------------------- many tabs


def test_tabs_in_the_background_leave_the_connections_of_the_browser_to_the_one_that_is_seen(browser, url):
    with looking(browser, url, script=HIDES) as page:
        for _ in range(STREAMS_OF_A_BROWSER):
            other = page.context.new_page()
            other.add_init_script(HIDES)
            other.goto(url)
            expect(other.locator("#state")).to_have_text("ready")
            with other.expect_event("requestfailed", lambda done: done.url.endswith("/v1/live")):
                other.evaluate(HIDE, True)
        page.reload()
        expect(page.locator("#state")).to_have_text("ready")
        expect(page.locator("#panel-messages")).to_contain_text("No messages are scheduled")


def test_a_tab_that_is_seen_again_is_live_at_once(browser, url):
    with looking(browser, url, script=HIDES) as page:
        expect(page.locator("#state")).to_have_text("ready")
        with page.expect_event("requestfailed", lambda done: done.url.endswith("/v1/live")):
            page.evaluate(HIDE, True)
        expect(page.locator("#state")).to_have_text("ready")
        with page.expect_request("**/v1/live"):
            page.evaluate(HIDE, False)


# ---------------------------------------------------------------------- answers that come late, or never


def test_a_stream_that_is_never_answered_is_asked_for_again(browser, url):
    held = []

    def hold_first(route):
        if held:
            route.continue_()
        else:
            held.append(route)

    with looking(browser, "about:blank", script=" ") as page:
        page.route("**/v1/live", hold_first)
        page.clock.install()
        with page.expect_request("**/v1/live"):
            page.goto(url)
        page.clock.fast_forward(10_000)
        expect(page.locator("#state")).to_have_text("ready")


def test_a_list_that_is_never_answered_is_asked_for_again(browser, url):
    held = []

    def hold_first(route):
        if held:
            route.continue_()
        else:
            held.append(route)

    with looking(browser, "about:blank", script=" ") as page:
        page.route("**/v1/topics?*", hold_first)
        page.clock.install()
        with page.expect_request("**/v1/topics?*"):
            page.goto(f"{url}/#topics")
        panel = page.get_by_role("tabpanel", name="Topics")
        page.clock.fast_forward(61_000)
        expect(panel).to_contain_text("No response")
        page.clock.fast_forward(4_000)
        expect(panel).not_to_contain_text("No response")


def test_after_a_change_no_older_answer_is_the_last_that_is_shown(browser, url):
    ask(url, "PUT", "/v1/schedules/raced", {"topic": "raced", "body": "x", "every": "1d"})
    held = []
    with looking(browser, f"{url}/#schedules", script=REFRESHES_NOTHING) as page:
        pause = page.get_by_role("button", name="Pause raced")
        expect(pause).to_be_visible()
        page.route("**/v1/schedules?*", lambda route: held.append((route, route.fetch())), times=1)
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        with page.expect_response("**/v1/schedules/raced/pause"):
            pause.click()
        route, older = held[0]
        route.fulfill(response=older)
        expect(page.get_by_role("button", name="Resume raced")).to_be_visible()


def test_the_last_day_is_shown_though_it_was_chosen_before_the_last_minutes_had_come(browser, url):
    held = []
    with looking(browser, "about:blank", script=" ") as page:
        page.route("**/v1/live/history?step=second", lambda route: held.append(route))  # noqa: PLW0108
        with page.expect_request("**/v1/live/history?step=second"):
            page.goto(url)
        with page.expect_response("**/v1/live/history?step=minute"):
            page.get_by_role("button", name="24 h").click()


def test_what_the_rate_of_a_token_refused_is_asked_for_again(browser, url):
    def answer(route):
        held.append(route)
        if len(held) == 1:
            route.fulfill(status=429, headers={"Retry-After": "1"}, json={"detail": "slower"})
        else:
            route.fulfill(json={"name": "slow", "scopes": ["receive"], "topics": ["*"]})

    held = []
    with looking(browser, "about:blank", script=" ", expected=("status of 429",)) as page:
        page.route("**/v1/token", answer)
        page.goto(f"{url}/#groups")
        expect(page.get_by_role("tabpanel", name="Groups").locator(".empty")).to_be_visible()
        expect(page.get_by_role("button", name="New group")).to_have_count(0)


def test_a_shard_that_is_heard_again_is_no_rush_of_messages(browser, url):
    """The totals of a tick are those of the shards that were heard, each since its own start."""
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"]
    point = dict.fromkeys(("recalled", "pending"), 0) | dict.fromkeys(("lateness_ms_p50", "lateness_ms_p99"))
    events = b""
    for number, total in enumerate((5, 9_000_005)):
        at_ms = now_ms + 1_000 * number
        second = point | {"at_ms": at_ms, "span_ms": 1_000, "accepted": 3, "fired": 2}
        totals = dict.fromkeys(("accepted_total", "fired_total", "recalled_total"), total)
        totals |= dict.fromkeys(("lateness_ms_p50", "lateness_ms_p99"), 1)
        tick = {"now_ms": at_ms, "status": "ready", "refusing": None, "pending": 0, "second": second}
        events += b"event: tick\ndata: %b\n\n" % orjson.dumps(tick | {"measures": totals})
    with looking(browser, "about:blank", script=" ") as page:
        page.route("**/v1/live", lambda route: route.fulfill(body=events, content_type="text/event-stream"))
        page.goto(url)
        expect(page.locator("#stat-accepted")).to_have_text("3")
        expect(page.locator("#stat-fired")).to_have_text("2")
        expect(page.locator(".needle .fired")).to_have_text("2 fired")


# ---------------------------------------------------------------------- times


@pytest.mark.parametrize("place", ["messages?topic=t&", "letters?group=t/g&"])
def test_an_end_of_a_period_that_is_not_touched_keeps_its_hour_of_an_autumn_night(browser, url, place):
    second_half_past_two_ms = 1_792_891_800_123  # 2026-10-25 02:30:00.123 in Berlin, an hour after the first
    with looking(
        browser, f"{url}/#{place}from={second_half_past_two_ms}", expected=("status of 404",)
    ) as page:
        panel = page.locator("[role=tabpanel]:not([hidden])")
        expect(panel.locator("[name=from]")).to_have_value("2026-10-25T02:30")
        panel.locator("[name=to]").fill("2026-10-26T00:00:00")
        panel.get_by_role("button", name=re.compile("^(Find|Show)$")).click()
        page.wait_for_url("**&to=*")
        assert f"from={second_half_past_two_ms}&" in page.url


# ---------------------------------------------------------------------- double clicks


def test_a_double_click_does_not_undo_what_it_does(browser, url):
    send(url, "twice", delay="1d")
    with looking(browser, f"{url}/#topics?open=topic:twice", script=" ") as page:
        changes = []
        page.on("request", lambda made: made.method == "POST" and changes.append(made.url.rpartition("/")[2]))
        pause = page.get_by_role("button", name="Pause twice")
        place = pause.bounding_box()
        pause.click()
        expect(page.get_by_role("button", name="Resume twice")).to_be_visible()
        click_again(page, place)
        with page.expect_response("**/v1/schedules?*"):
            page.keyboard.press("Escape")
            page.get_by_role("tab", name="Schedules").click()
        assert changes == ["pause"]


def test_a_double_click_on_the_answer_to_a_question_leaves_the_panel_below_it_open(browser, url):
    sent = send(url, "twice", delay="1d")
    with looking(browser, f"{url}/#messages?open=message:{sent['id']}") as page:
        page.get_by_role("button", name="Recall", exact=True).click()
        yes = page.get_by_role("button", name="Recall it")
        place = yes.bounding_box()
        yes.click()
        click_again(page, place)
        expect(page.get_by_role("dialog").locator(".pill")).to_have_text("recalled")
        assert "open=message:" in page.url.replace("%3A", ":")


# ---------------------------------------------------------------------- browsers and bodies


def test_a_browser_that_keeps_nothing_of_the_page_shows_it_all_the_same(browser, url):
    with looking(browser, url, script=KEEPS_NOTHING) as page:
        expect(page.locator("#state")).to_have_text("ready")
        page.get_by_label("Theme").select_option("dark")
        expect(page.locator(":root")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize("name", ["topic", "key", "tag"])
def test_a_filter_of_a_long_name_is_no_wider_than_the_screen(browser, url, name):
    width = 360
    with looking(browser, f"{url}/#messages?topic=t&{name}={'n' * 127}", width=width) as page:
        expect(page.locator("#panel-messages .empty")).to_contain_text("meets all of this")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_open_transaction_has_no_due_time(browser, url):
    begun = ask(url, "POST", "/v1/transactions", {"topic": "half", "body": "x", "delay": "1h"})
    with looking(browser, f"{url}/#messages?topic=half") as page:
        row = page.locator("#panel-messages tbody tr")
        expect(row).to_contain_text("open transaction")
        expect(row.get_by_role("checkbox")).to_have_count(0)
        row.get_by_role("link").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator("dl").first).to_contain_text("Duewhen its transaction is committed")
        expect(dialog.get_by_role("button", name="Reschedule")).to_have_count(0)
        ask(url, "POST", f"/v1/transactions/{begun['id']}/rollback")
        page.reload()
        expect(dialog.locator(".pill")).to_have_text("recalled")
        expect(dialog).not_to_contain_text("9999-")


@pytest.mark.parametrize("levels", [20_000, 400_000])
def test_json_of_thousands_of_levels_is_shown_as_far_as_it_goes(browser, url, levels):
    sent = send(url, "deep", body="[" * levels + "]" * levels, delay="1d")
    with looking(browser, f"{url}/#messages?open=message:{sent['id']}") as page:
        dialog = page.get_by_role("dialog", name="Message")
        expect(dialog.locator(".body")).to_have_text(re.compile(r"^\[\n  \[\n    \["))
        expect(dialog).to_contain_text("JSON, indented, the first 50,000 characters")


def test_the_body_of_a_schedule_is_shown_as_that_of_a_message_is(browser, url):
    body = '{"text": "%s"}' % ("x" * 100_000)
    ask(url, "PUT", "/v1/schedules/large", {"topic": "large", "body": body, "every": "1d"})
    with looking(browser, f"{url}/#schedules?open=schedule:large") as page:
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".body")).to_have_text(re.compile(r'^\{\n  "text": "x+$'))
        expect(dialog).to_contain_text("JSON, indented, the first 50,000 characters")
        expect(dialog.get_by_role("button", name="Copy the body")).to_be_visible()
