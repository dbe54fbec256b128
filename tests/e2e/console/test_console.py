"""The console in a real browser, on a real service: what it shows, what can be done there, and by keys alone.

Whatever a test does, the page complains of nothing: see `tests.harness.browser`.
"""

import functools
import re
import shlex
import signal

import orjson
import pytest
from playwright.sync_api import expect

from tests.harness.browser import FAILED, PATIENCE_MS, SharedPage, chromium, faint_texts, looking
from tests.harness.browser_seed import HOUR_MS, ask, fail, fill, send
from tests.harness.processes import serving, started, timerwheel
from timerwheel import tokens

expect.set_options(timeout=PATIENCE_MS)
MINUTE_MS, DAY_MS = 60_000, 24 * HOUR_MS
# As `COUNT_SPARKS`, from the start: the events of a test come at once.
COUNT_FLOWS = """
  window.flows = 0;
  new MutationObserver((changes) => {
    const added = changes.flatMap((change) => [...change.addedNodes]);
    window.flows += added.filter((node) => node.classList?.contains("flow")).length;
  }).observe(document, { childList: true, subtree: true });
"""
COUNT_SPARKS = """() => {
  window.sparks = 0;
  new MutationObserver((changes) => {
    const added = changes.flatMap((change) => [...change.addedNodes]);
    window.sparks += added.filter((node) => node.checkVisibility()).length;
  }).observe(document.querySelector(".motion"), { childList: true });
}"""
TABS = ["Messages", "Topics", "Groups", "Dead letters", "Subscriptions", "Schedules"]
MARKUP = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&lt;b&gt;"


def rarely(*case):
    """Parameters of a case that only `make torture` takes."""
    return pytest.param(*case, marks=pytest.mark.torture)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A service with something of everything; each test works on topics of its own besides."""
    chromium()  # or there is nothing to start it for
    with serving(tmp_path_factory.mktemp("console") / "data") as running:
        fill(running.url)
        yield running.url


@pytest.fixture(scope="module")
def shared(browser, url):
    found = SharedPage(browser, url)
    yield found
    found.close()


@pytest.fixture
def page(shared, request):
    """The page that tests share, to which each comes with its first list shown, no dialog and no notice."""
    page = shared.take()
    expect(page.locator("#state")).to_have_text("ready")
    page.get_by_role("tab", name="Messages").click()
    page.locator("#panel-messages").get_by_role("button", name="Clear", exact=True).click()
    expect(page.locator("#panel-messages h3")).to_have_text("All scheduled messages")
    yield page
    if not request.node.stash[FAILED]:
        shared.give_back(page)


def stream(now_ms, *, pending=0, overdue=0, refusing=None, moved=(0, 0, 0, 0), second_point=None, **slots):
    """The live events of one moment, with these slots in use of each level."""
    tick = {"now_ms": now_ms, "status": "ready", "refusing": refusing, "pending": pending, "measures": {}}
    tick["second"] = second_point
    levels = [
        {"level": level, "slots": slots.get(level, []), "later": 0, "moved_until_ms": until_ms}
        for level, until_ms in zip(("second", "minute", "hour", "day"), moved, strict=True)
    ]
    events = [("tick", tick), ("wheel", {"now_ms": now_ms, "overdue": overdue, "levels": levels})]
    return b"".join(b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data)) for kind, data in events)


def hear(page, events):
    """Have the page hear these live events, and not those of the service."""
    page.route("**/v1/live", lambda route: route.fulfill(body=events, content_type="text/event-stream"))


def answer_with(content, route):
    """Answer a call of the page with this."""
    route.fulfill(json=content)


def open_tab(page, name):
    page.get_by_role("tab", name=name).click()
    panel = page.get_by_role("tabpanel", name=name)
    expect(panel.locator("table, .empty").first).to_be_visible()
    return panel


def list_topic(page, topic, count):
    """Follow the count of a topic to its scheduled messages; the page lists `count` of them. Their rows."""
    open_tab(page, "Topics").get_by_role("link", name=re.compile(f"scheduled for {topic}$")).click()
    panel = page.get_by_role("tabpanel", name="Messages")
    expect(panel.locator("h3")).to_have_text(f"Scheduled for {topic}")
    rows = panel.locator("tbody tr")
    expect(rows.get_by_role("cell", name=topic, exact=True)).to_have_count(count)
    expect(rows).to_have_count(count)
    return rows


def box_of(found):
    """Where an element is, which the page may draw again at any time."""
    while True:
        expect(found).to_be_visible()
        if (box := found.bounding_box()) is not None:
            return box


def every(found, at_least=1):
    """Each element of a locator, once there are so many of them."""
    expect(found.nth(at_least - 1)).to_be_attached()
    return found.all()


def ask_for_what_ends_before_it_begins(page):
    """Ask for messages of a time that the page refuses."""
    for name, text in (("Due from", "2030-01-02T00:00:00"), ("Due until", "2030-01-01T00:00:00")):
        page.get_by_label(name).fill(text)
    page.get_by_role("button", name="Find").click()


def test_a_test_that_fails_leaves_the_next_one_a_page_as_it_was_loaded(browser, url):
    shared = SharedPage(browser, url)
    page = shared.take()
    page.get_by_role("button", name="Token", exact=True).click()
    page.route("**/v1/**", lambda route: route.abort())
    page.set_viewport_size({"width": 400, "height": 400})
    page.evaluate("console.error('what it complains of is of the test that failed')")
    page = shared.take()
    assert page.viewport_size["width"] == 1280
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.get_by_role("dialog")).to_have_count(0)
    shared.give_back(page)
    assert shared.take() is page, "of one that passed, it is taken as it is"
    page.evaluate("console.error('told at the end')")
    shared.give_back(page)
    with pytest.raises(AssertionError, match="told at the end"):
        shared.close()


# ---------------------------------------------------------------------- what it shows


def name_group(place, group):
    """Write the name of a group, though the page may put the first one there between two steps of `fill`."""
    field = place.get_by_label("Group", exact=True)
    while field.input_value() != group:
        field.fill(group)


def test_what_waits_is_on_the_rings_and_a_click_on_a_slot_lists_it(page, url):
    sent = send(url, "rings", delay_ms=100_000)
    slot = page.locator(f"#slot-second-{sent['due_ms'] // 1_000 % 240}")
    expect(slot).to_have_attribute("aria-label", re.compile(r"[1-9] scheduled"))
    slot.click()
    expect(page.locator("#panel-messages h3")).to_contain_text("Slot of a second")
    expect(page.locator("#panel-messages h3")).to_be_focused()
    expect(page.get_by_role("link", name=sent["id"])).to_be_visible()
    # One that `fill` may have put into this second counts too; the ring is drawn again once in a while.
    listed = page.locator("#panel-messages tbody tr").count()
    expect(slot).to_have_attribute("aria-label", re.compile(rf"\b{listed} scheduled"))


def test_the_rings_turn_towards_one_needle_and_a_slot_reaches_it_when_it_is_due(page, url):
    second = page.locator(".turning").first
    before = second.get_attribute("style")
    expect(second).not_to_have_attribute("style", before)
    assert page.locator(".needle line").count() == 1
    sent = send(url, "needle", delay_ms=6_000)
    slot = page.locator(f"#slot-second-{sent['due_ms'] // 1_000 % 240}")
    expect(slot).to_have_attribute("aria-label", re.compile(r"[12] scheduled"))  # one may be of `fill`
    expect(page.locator(".needle .now").first).to_have_text(re.compile(r"now \d\d:\d\d:\d\d"))
    expect(page.locator(".needle .fired")).to_have_text(re.compile(r"[12] fired"))


def test_the_histogram_says_what_fires_in_the_next_minute_hour_and_day_and_lists_it(page, url):
    for delay in ("45s", "45m", "20h"):
        send(url, "histogram", delay=delay)
    chart = page.locator("#forecast .plot")
    for span in ("minute", "hour", "day"):
        page.get_by_role("button", name=span, exact=True).click()
        expect(chart).to_have_attribute("aria-label", re.compile(rf"\d+ due in the next {span}, most at "))
    page.get_by_role("button", name="List them").click()
    expect(page.locator("#panel-messages h3")).to_contain_text("Due ")
    expect(page.locator("#panel-messages")).to_contain_text("histogram")
    chart.focus()
    page.keyboard.press("Home")
    expect(page.locator("#forecast .summary")).to_contain_text(re.compile(r"^\d\d:\d\d: \d+ due$"))
    page.keyboard.press("Enter")
    expect(page.locator("#panel-messages h3")).to_contain_text("Due ")


def test_throughput_and_lateness_are_live(page, url):
    fired = page.locator("#throughput .plot")
    ask(
        url, "POST", "/v1/messages", [{"topic": "live", "delay_ms": delay} for delay in range(100, 3_000, 10)]
    )
    expect(fired).to_have_attribute("aria-label", re.compile(r"fired [1-9]"))
    expect(page.locator("#stat-most")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    expect(page.locator("#lateness .plot")).to_have_attribute("aria-label", re.compile(r"p50 [\d.]+, p99 "))


def test_charts_are_full_at_first_paint_and_show_the_last_day_on_demand(browser, url):
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"]
    rows = range(now_ms - 800_000, now_ms, 1_000)
    history = dict.fromkeys(("accepted", "recalled", "pending"), [4] * len(rows))
    history |= {"now_ms": now_ms, "at_ms": list(rows), "span_ms": [1_000] * len(rows)}
    history |= {"fired": [7] * len(rows), "lateness_ms_p50": [2.0] * len(rows)}
    history |= {"lateness_ms_p99": [None] * (len(rows) - 1) + [9.5]}
    with looking(browser, "about:blank", expected=("status of 503",)) as page:
        page.route("**/v1/live/history?*", functools.partial(answer_with, history))
        second = {name: column[-1] for name, column in history.items() if name != "now_ms"}
        hear(page, stream(now_ms, second_point=second | {"at_ms": now_ms, "fired": 8}))
        page.goto(url)
        throughput = page.locator("#throughput .plot")
        expect(throughput).to_have_attribute("aria-label", re.compile("accepted 4, fired [78], recalled 4"))
        expect(page.locator("#lateness .plot")).to_have_attribute("aria-label", re.compile("p99 9.5"))
        with page.expect_request("**/v1/live/history?step=minute"):
            page.get_by_role("button", name="24 h").click()
        expect(page.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")


def test_topics_groups_with_their_lag_subscriptions_and_schedules_are_listed(page):
    expect(open_tab(page, "Topics").get_by_role("row", name="reminders")).to_contain_text(re.compile(r"\d\d"))
    cells = open_tab(page, "Groups").get_by_role("row", name="closers").get_by_role("cell")
    for place, text in enumerate(["orders", "closers", "9"]):
        expect(cells.nth(place)).to_have_text(text)
    expect(open_tab(page, "Subscriptions").get_by_role("row", name="hooks.example/orders")).to_contain_text(
        "paused"
    )
    expect(open_tab(page, "Schedules").get_by_role("row", name="daily")).to_contain_text(
        "every day at 02:30 30 2 * * * (Europe/Berlin)"
    )


def test_ten_million_pending_messages_are_counted_and_never_loaded(browser, url):
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"]
    hour_ms = now_ms // HOUR_MS * HOUR_MS
    hours = [[hour_ms + number * HOUR_MS, 10_000_000 // 60] for number in range(3, 63)]
    body = stream(now_ms, hour=hours, pending=10_000_000, overdue=1_234)
    asked = []
    with looking(browser, "about:blank") as page:
        page.on("request", lambda request: asked.append(request.url.removeprefix(url)))
        hear(page, body)
        page.goto(url)
        expect(page.locator("#stat-pending")).to_have_text("10M")
        expect(page.locator("#stat-overdue")).to_have_text("1,234")
        expect(page.locator(f"#slot-hour-{hours[0][0] // HOUR_MS % 72}")).to_have_attribute("data-load", "6")
        expect(page.locator(".levels")).to_contain_text("9,999,960")
        expect(page.locator("#panel-messages td").first).to_be_visible()
    lists = {f"/v1/{name}?limit=1000" for name in ("groups", "subscriptions", "schedules")}
    lists |= {"/v1/live/history?step=second", "/v1/token", "/v1/cluster"}
    assert {path for path in asked if path.startswith("/v1/")} == {
        "/v1/live",
        "/v1/messages?state=scheduled&limit=50",
    } | lists


def test_the_next_rush_is_called_out_with_its_time_and_count_and_leads_to_its_messages(browser, url):
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"] // MINUTE_MS * MINUTE_MS
    minutes = [[now_ms + number * MINUTE_MS, 12] for number in range(5, 170)]
    minutes[40][1] = 5_000
    seconds = [[now_ms + number * 1_000, 1] for number in range(2, 200)]
    body = stream(now_ms, second=seconds, minute=minutes, moved=(0, minutes[0][0], 0, 0))
    with looking(browser, "about:blank", expected=("status of 503",)) as page:
        hear(page, body)
        page.goto(url)
        rush = page.locator(".rush")
        expect(rush).to_have_text(re.compile(r"\d\d:\d\d rush5,000 messages, in 45 min"))
        expect(page.locator(".rush-mark")).to_have_attribute("visibility", "visible")
        moved = page.locator('[data-load="moved"]')
        assert {one.get_attribute("id").split("-")[1] for one in every(moved)} == {"minute"}
        expect(moved.first).to_have_attribute("aria-label", re.compile("moved to the ring outside"))
        rush.click()
        expect(page.locator("#panel-messages h3")).to_contain_text("Due ")
        assert f"from={minutes[40][0]}&to={minutes[41][0]}" in page.url


def test_the_mark_of_a_rush_is_on_its_fullest_slot(browser, url):
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"] // MINUTE_MS * MINUTE_MS
    start_ms = now_ms + 40_000
    counts = [60, 3_000, *range(90, 20, -5)]
    slots = [[start_ms + at * 1_000, count] for at, count in enumerate(counts + [5] * 100)]
    body = stream(now_ms, second=slots)
    with looking(browser, "about:blank", expected=("status of 503",)) as page:
        hear(page, body)
        page.goto(url)
        expect(page.locator(".rush")).to_contain_text(f"{sum(counts):,} messages, in 40 s")
        slot = box_of(page.locator(f"#slot-second-{(start_ms // 1_000 + 1) % 240}"))
        mark = box_of(page.locator(".rush-mark circle"))
        for at, size in (("x", "width"), ("y", "height")):
            assert abs(slot[at] + slot[size] / 2 - mark[at] - mark[size] / 2) < 4


def test_a_slot_that_cascades_flows_to_the_next_ring_and_is_told_in_words(browser, url):
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"] // MINUTE_MS * MINUTE_MS
    until_ms = now_ms + 4 * MINUTE_MS
    before = stream(now_ms, minute=[[until_ms, 204]], moved=(0, until_ms, 0, 0))
    seconds = [[until_ms + number * 1_000, 4] for number in range(51)]
    after = stream(now_ms + 1_000, second=seconds, moved=(0, until_ms + MINUTE_MS, 0, 0))
    for less, flows in (("no-preference", 1), ("reduce", 0)):
        with looking(browser, "about:blank", expected=("status of 503",), script=COUNT_FLOWS) as page:
            page.emulate_media(reduced_motion=less)
            hear(page, before + after)
            page.goto(url)
            expect(page.locator(".readout")).to_have_text(
                re.compile(r"^204 messages of the minute \d\d:\d\d moved out to S$")
            )
            # The stream of the test ends, and the page reads it again.
            assert min(page.evaluate("window.flows"), 1) == flows


@pytest.mark.torture
def test_a_rush_keeps_its_call_as_it_climbs_from_ring_to_ring_and_even_loads_have_none(browser, url):
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"] // DAY_MS * DAY_MS
    at = {"day": 9 * DAY_MS, "hour": 20 * HOUR_MS, "minute": 50 * MINUTE_MS, "second": 90_000}
    for level, ahead_ms in at.items():
        with looking(browser, "about:blank", expected=("status of 503",)) as page:
            body = stream(now_ms, **{level: [[now_ms + ahead_ms, 700]]})
            hear(page, body)
            page.goto(url)
            expect(page.locator(".rush")).to_contain_text("700 messages, in ")
    with looking(browser, "about:blank", expected=("status of 503",)) as page:
        days = [[now_ms + number * DAY_MS, 700] for number in range(3, 80)]
        minutes = [[now_ms + number * MINUTE_MS, 90] for number in range(3, 33)]  # the rest is in the hours
        hear(page, stream(now_ms, day=days, minute=minutes))
        page.goto(url)
        expect(page.locator(".levels")).to_contain_text("53,900")
        expect(page.locator(".rush")).to_be_hidden()


@pytest.mark.torture
def test_the_words_about_a_rush_end_before_the_needle_and_its_ring_hides_no_mark(browser, url):
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"] // HOUR_MS * HOUR_MS
    body = stream(now_ms, hour=[[now_ms + 39 * HOUR_MS, 12_345]])
    for width in (700, 1010, 1180, 1440):
        with looking(browser, "about:blank", width=width, expected=("status of 503",)) as page:
            hear(page, body)
            page.goto(url)
            expect(page.locator(".rush")).to_contain_text("12,345 messages, in 1 d 15 h")
            places = (".needle", "#wheel", ".levels")
            needle, wheel, levels = (page.locator(one).bounding_box() for one in places)
            assert levels["x"] + levels["width"] <= wheel["x"] + wheel["width"] + 1, width
            for words in every(page.locator(".rush > *"), 2):
                assert words.bounding_box()["x"] >= needle["x"] + needle["width"], width
            assert page.locator(".rush-mark ~ .marks").count() == 4, "marks are drawn over the ring"


def test_a_service_of_one_process_has_no_list_of_nodes(page):
    expect(page.get_by_role("tab")).to_have_count(len(TABS))


def test_what_is_wrong_is_in_a_strip_of_links_on_the_tabs_and_in_the_title(browser, url):
    now_ms = ask(url, "GET", "/v1/wheel")["now_ms"]
    body = stream(now_ms, overdue=7, refusing="the disk is full")
    groups = {"groups": [{"topic": "orders", "group": "late", "lag": 900, "dead_letters": 312}]}
    groups["groups"][0] |= {"oldest_age_ms": 3_600_000, "config": {"kind": "leases"}}
    groups["groups"][0] |= {"in_flight": 0, "waiting": 0, "ready": 0, "parked": 0}
    endpoint = {"id": "hook", "topic": "t", "group": "g", "url": "http://x", "status": "failing"}
    endpoint |= {"failing_since_ms": now_ms, "failures_in_row": 4, "last_error": "HTTP 503", "disabled": None}
    held = {"name": "daily", "topic": "t", "cron": "@daily", "zone": "UTC", "paused": False}
    held |= {"next_run_ms": now_ms, "problem": "the disk is full"}
    late = held | {"name": "nightly", "problem": None, "missed_runs": 3, "missed_last_ms": now_ms - HOUR_MS}
    long_ago = late | {"name": "yearly", "missed_last_ms": now_ms - 25 * HOUR_MS}
    answers = {"groups": groups, "subscriptions": {"subscriptions": [endpoint]}}
    answers["schedules"] = {"schedules": [held, late, long_ago]}
    with looking(browser, "about:blank", expected=("status of 503",)) as page:
        hear(page, body)
        for name, content in answers.items():
            page.route(f"**/v1/{name}?*", functools.partial(answer_with, content))
        page.goto(url)
        strip = page.get_by_role("navigation", name="Needs attention")
        for text, link in {
            "New messages are refused": "#topics",
            "7 overdue": "#messages?overdue=1",
            "312 dead letters": "#letters?group=orders%2Flate",
            "orders/late is 1 h behind": "#groups?open=group%3Aorders%2Flate",
            "hook fails": "#subscriptions?open=subscription%3Ahook",
            "daily misses runs": "#schedules?open=schedule%3Adaily",
            "3 missed runs of nightly": "#schedules?open=schedule%3Anightly",
        }.items():
            expect(strip.get_by_role("link", name=text)).to_have_attribute("href", link)
        expect(page.get_by_role("tab", name="Dead letters")).to_have_text("Dead letters312")
        expect(page.get_by_role("tab", name="Schedules")).to_have_text("Schedules2")
        expect(page).to_have_title(re.compile("timerwheel$"))
        assert page.title() != "timerwheel"
        strip.get_by_role("link", name="7 overdue").click()
        expect(page.locator("#panel-messages h3")).to_have_text("Overdue")


@pytest.mark.torture
def test_who_asks_for_less_motion_sees_no_sparks_and_rings_that_do_not_glide(browser, url):
    for less, shown in (("reduce", 0), ("no-preference", 1)):
        with looking(browser, url) as page:
            page.emulate_media(reduced_motion=less)
            page.evaluate(COUNT_SPARKS)
            expect(page.locator(".needle .fired")).not_to_have_text("1 fired")  # of the page before
            send(url, "sparks", delay="2s")
            expect(page.locator(".needle .fired")).to_have_text("1 fired")
            assert min(page.evaluate("window.sparks"), 1) == shown
            glide = page.locator(".turning").first.evaluate(
                "ring => getComputedStyle(ring).transitionDuration"
            )
            assert (glide == "0s") == (less == "reduce")


# ---------------------------------------------------------------------- the address


def test_a_link_opens_a_list_with_its_filter_and_a_panel_and_back_closes_the_panel(browser, url):
    sent = send(url, "linked", delay="1d")
    send(url, "elsewhere", delay="1d")
    with looking(browser, f"{url}/#messages?topic=linked&open=message:{sent['id']}") as page:
        dialog = page.get_by_role("dialog", name="Message")
        expect(dialog).to_contain_text(sent["id"])
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(page.locator("#panel-messages tbody tr")).to_have_count(1)
        assert page.url.endswith("#messages?topic=linked")
        page.get_by_role("link", name=sent["id"]).click()
        expect(dialog).to_be_visible()
        page.go_back()
        expect(dialog).to_have_count(0)
        assert page.url.endswith("#messages?topic=linked")
        page.go_forward()
        expect(dialog).to_be_visible()
        page.reload()
        expect(dialog).to_contain_text(sent["id"])


def test_groups_subscriptions_schedules_and_filters_have_addresses(browser, url):
    for address, words in {
        "#groups?open=group:orders/closers": "Lag",
        "#subscriptions?open=subscription:hook": "https://hooks.example/orders",
        "#schedules?open=schedule:daily": "30 2 * * *",
    }.items():
        with looking(browser, f"{url}/{address}") as page:
            expect(page.get_by_role("dialog")).to_contain_text(words)
    with looking(browser, f"{url}/#groups?find=closers") as page:
        expect(page.get_by_label("Filter groups")).to_have_value("closers")
        page.get_by_label("Filter groups").fill("nothing like it")
        expect(page.locator("#panel-groups")).to_contain_text("None contains “nothing like it”.")
        assert "find=nothing%20like%20it" in page.url
    slot_ms = ask(url, "GET", "/v1/wheel")["now_ms"] // DAY_MS * DAY_MS + 9 * DAY_MS
    with looking(browser, f"{url}/#messages?slot=day-{slot_ms}") as page:
        expect(page.locator("#panel-messages h3")).to_contain_text("Slot of a day, ")


def test_a_link_to_something_that_is_gone_says_so_and_leaves_the_list(browser, url):
    gone = f"{url}/#topics?open=message:{'0' * 23}7"
    with looking(browser, gone, expected=("status of 404",)) as page:
        expect(page.get_by_role("alert")).to_be_visible()
        expect(page.get_by_role("tab", name="Topics")).to_have_attribute("aria-selected", "true")
        expect(page).to_have_url(re.compile("#topics$"))


def test_topics_of_the_service_are_not_among_those_of_the_user(page, url):
    panel = open_tab(page, "Topics")
    expect(panel.get_by_role("link", name="reminders", exact=True)).to_be_visible()
    expect(panel).not_to_contain_text("rmq_sys_wheel_timer")
    assert any(topic["topic"] == "%DLQ%closers" for topic in ask(url, "GET", "/v1/topics")["topics"])
    expect(panel).not_to_contain_text("%DLQ%")


# ---------------------------------------------------------------------- lists that filter


@pytest.fixture(scope="module")
def filtered(url):
    """Messages of the topic `filtered` in each state: four scheduled, three delivered, two recalled."""
    waiting = [
        {
            "topic": "filtered",
            "delay": f"{day}d",
            "tags": tag,
            "keys": f"order-{day} shared",
            "body": f"day {day}",
        }
        for day, tag in ((1, "vip"), (2, "plain"), (3, "vip"), (4, "plain"))
    ]
    ask(url, "POST", "/v1/messages", waiting)
    for number in range(3):
        send(url, "filtered", body=f"came {number}", keys="shared", tags="vip")
    for number in range(2):
        sent = send(url, "filtered", body=f"taken {number}", delay="9d", dedup_key=f"taken-{number}")
        ask(url, "DELETE", f"/v1/messages/{sent['id']}")
    return "filtered"


def expect_bodies(page, *wanted):
    """Wait until the list of messages shows these bodies, in this order."""
    expect(page.locator("#panel-messages tbody td:last-child")).to_have_text(list(wanted))


def test_messages_are_filtered_by_state_topic_tag_and_key_and_back_returns_to_the_filter_before(
    page, url, filtered
):
    search = page.get_by_role("search")
    panel = page.get_by_role("tabpanel", name="Messages")
    for field, text, address, found in (
        ("Topic", filtered, "#messages?topic=filtered", ["day 1", "day 2", "day 3", "day 4"]),
        ("Tag", "vip", "#messages?topic=filtered&tag=vip", ["day 1", "day 3"]),
        (
            "State",
            "delivered",
            "#messages?state=delivered&topic=filtered&tag=vip",
            ["came 2", "came 1", "came 0"],
        ),
        (
            "Order",
            "oldest",
            "#messages?state=delivered&topic=filtered&tag=vip&order=oldest",
            ["came 0", "came 1", "came 2"],
        ),
    ):
        control = search.get_by_label(field)
        control.select_option(text) if field in ("State", "Order") else control.fill(text)
        search.get_by_role("button", name="Find").click()
        expect(page).to_have_url(f"{url}/{address}")
        expect_bodies(page, *found)
    expect(panel.locator("h3")).to_have_text("Delivered messages of filtered")
    panel.get_by_role("link", name="Do not filter by tag: tag vip").click()
    expect(panel.locator("h3")).to_be_focused()
    expect(page).to_have_url(f"{url}/#messages?state=delivered&topic=filtered&order=oldest")
    for _ in range(3):
        page.go_back()
    expect(page).to_have_url(f"{url}/#messages?topic=filtered&tag=vip")
    expect_bodies(page, "day 1", "day 3")
    expect(search.get_by_label("Tag")).to_have_value("vip")
    expect(search.get_by_label("State")).to_have_value("scheduled")
    search.get_by_role("button", name="Clear").click()
    expect(page).to_have_url(f"{url}/#messages")
    expect(search.get_by_label("Topic")).to_have_value("")


@pytest.mark.usefixtures("filtered")
def test_a_key_is_found_in_every_state_and_a_single_message_is_opened(page, url):
    search = page.get_by_role("search")
    search.get_by_label("Id or key").fill("shared")
    expect(search.get_by_label("State")).to_have_value("any")
    search.get_by_role("button", name="Find").click()
    expect(page.locator("#panel-messages tbody tr")).to_have_count(7)
    expect_bodies(page, "day 1", "day 2", "day 3", "day 4", "came 0", "came 1", "came 2")
    expect(page.locator("#panel-messages tbody .pill").first).to_have_text("scheduled")
    search.get_by_label("Id or key").fill("taken-1")
    search.get_by_role("button", name="Find").click()
    expect(page.get_by_role("dialog", name="Message")).to_contain_text("taken 1")
    page.keyboard.press("Escape")
    expect(page).to_have_url(f"{url}/#messages?key=taken-1")
    expect_bodies(page, "taken 1")


@pytest.mark.usefixtures("filtered")
def test_a_time_filters_by_what_the_state_says_and_is_in_the_address_to_the_millisecond(browser, url):
    due = [one["due_ms"] for one in ask(url, "GET", "/v1/messages?topic=filtered")["messages"]]
    with looking(browser, f"{url}/#messages?topic=filtered&from={due[1]}&to={due[2]}") as page:
        expect_bodies(page, "day 2")
        expect(page.locator("#panel-messages h3")).to_contain_text(re.compile("^Due .* for filtered$"))
        search = page.get_by_role("search")
        search.get_by_label("Tag").fill("plain")
        search.get_by_role("button", name="Find").click()
        expect(page).to_have_url(f"{url}/#messages?topic=filtered&tag=plain&from={due[1]}&to={due[2]}")
        search.get_by_label("Due until").fill("")
        search.get_by_role("button", name="Find").click()
        expect(page.locator("#panel-messages tbody tr")).to_have_count(2)
        search.get_by_label("State").select_option("recalled")
        search.get_by_label("Recalled from").fill("2001-01-01T00:00:00")
        search.get_by_label("Tag").fill("")
        search.get_by_role("button", name="Find").click()
        expect(page.locator("#panel-messages h3")).to_contain_text(
            "Recalled messages of filtered, from 2001-01-01"
        )
        expect_bodies(page, "taken 1", "taken 0")


@pytest.mark.usefixtures("filtered")
def test_only_scheduled_messages_can_be_ticked_and_recalled(page, url):
    page.goto(f"{url}/#messages?state=any&topic=filtered&tag=vip")
    panel = page.get_by_role("tabpanel", name="Messages")
    expect(panel.locator("tbody tr")).to_have_count(5)
    expect(panel.get_by_role("checkbox")).to_have_count(2)
    page.goto(f"{url}/#messages?state=delivered&topic=filtered")
    expect(panel.locator("tbody tr")).to_have_count(3)
    expect(panel.get_by_role("checkbox")).to_have_count(0)
    expect(panel.get_by_role("button", name="Recall many")).to_have_count(0)
    page.goto(f"{url}/#messages?topic=filtered&tag=plain")
    panel.get_by_role("button", name="Recall many").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Topic")).to_have_value("filtered")
    expect(dialog.get_by_label("Tags")).to_have_value("plain")
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog.get_by_role("button", name="Recall 2 messages")).to_be_visible()


@pytest.mark.usefixtures("filtered")
@pytest.mark.torture
def test_no_row_of_another_filter_stands_under_a_new_heading_while_it_loads(browser, url):
    held = []
    with looking(browser, f"{url}/#messages?topic=filtered") as page:
        panel = page.get_by_role("tabpanel", name="Messages")
        expect(panel.locator("tbody tr")).to_have_count(4)
        panel.get_by_role("checkbox").first.check()
        page.route("**/v1/messages?*tag=vip*", lambda route: held.append(route))  # noqa: PLW0108
        with page.expect_request("**/v1/messages?*tag=vip*"):
            page.evaluate("location.hash = '#messages?topic=filtered&tag=vip'")
        expect(panel.locator("tbody tr")).to_have_count(0)
        expect(panel.locator("[aria-busy=true]")).to_have_text("Loading")
        expect(panel.get_by_role("button", name=re.compile("chosen"))).to_have_count(0)
        held[0].continue_()
        expect_bodies(page, "day 1", "day 3")


def test_an_empty_list_says_what_was_filtered_and_clears_it(page, url):
    panel = page.get_by_role("tabpanel", name="Messages")
    page.goto(f"{url}/#messages?topic=nowhere&tag=vip")
    expect(panel.locator(".empty")).to_contain_text(
        "No message meets all of this: scheduled, topic nowhere, tag vip."
    )
    panel.get_by_role("link", name="Clear the filter").click()
    expect(panel.locator("h3")).to_have_text("All scheduled messages")
    page.goto(f"{url}/#messages?state=recalled&tag=vip")
    expect(panel.locator(".empty")).to_contain_text("listed for a topic or a key: give one above")


def test_pages_of_the_service_with_few_messages_or_none_are_read_on_to_a_whole_page(browser, url):
    one = send(url, "sparse", delay="1d")
    found = ask(url, "GET", f"/v1/messages/{one['id']}")
    asked = []

    def answer(route):
        asked.append(route.request.url)
        number = len(asked)
        route.fulfill(
            json={"messages": [found] * (number % 2), "cursor": f"c{number}" if number < 6 else None}
        )

    with looking(browser, "about:blank") as page:
        page.route("**/v1/messages?*", answer)
        page.goto(f"{url}/#messages?topic=sparse&tag=rare")
        expect(page.locator("#panel-messages tbody tr")).to_have_count(3)
        expect(page.get_by_role("button", name="Next")).to_be_hidden()
    assert [re.search(r"cursor=(\w+)", one)[1] for one in asked[1:]] == ["c1", "c2", "c3", "c4", "c5"]


def test_a_fault_in_the_address_of_a_filter_is_told_in_the_words_of_the_service(browser, url):
    with looking(browser, f"{url}/#messages?state=lost&topic=x", expected=("status of 400",)) as page:
        expect(page.locator("#panel-messages").get_by_role("alert")).to_contain_text(
            "give scheduled, delivered or recalled"
        )


def test_five_hundred_topics_are_pages_and_are_filtered_by_name(browser, tmp_path):
    with serving(tmp_path / "data") as running, looking(browser, running.url, width=390) as page:
        ask(
            running.url,
            "POST",
            "/v1/messages",
            [{"topic": f"topic-{n:03d}", "delay": "1d"} for n in range(500)],
        )
        panel = open_tab(page, "Topics")
        rows = panel.locator("tbody tr")
        expect(panel).to_contain_text("1 to 100 of 500")
        expect(rows).to_have_count(100)
        panel.get_by_role("button", name="Next").click()
        expect(panel.get_by_text("101 to 200 of 500")).to_be_focused()
        expect(rows.first).to_contain_text("topic-100")
        panel.get_by_label("Filter topics").fill("pic-49")
        expect(rows).to_have_count(10)
        expect(panel).to_contain_text("10 of 500")
        expect(panel.get_by_role("button", name="Next")).to_be_hidden()


def test_no_letter_of_another_group_stands_under_its_name_while_it_loads(browser, url):
    held = []
    for group in ("first-dead", "second-dead"):
        send(url, group, delay="1ms")
        fail(url, group, group, count=1)
    with looking(browser, f"{url}/#letters?group=first-dead/first-dead") as page:
        panel = page.get_by_role("tabpanel", name="Dead letters")
        expect(panel.get_by_role("cell", name="first-dead")).to_be_visible()
        page.route("**/second-dead/dead-letters?*", lambda route: held.append(route))  # noqa: PLW0108
        with page.expect_request("**/second-dead/dead-letters?*"):
            page.evaluate("location.hash = '#letters?group=second-dead/second-dead'")
        expect(panel.locator("tbody tr")).to_have_count(0)
        expect(panel.locator("[aria-busy=true]")).to_have_text("Loading")
        expect(panel.get_by_role("button", name="Drop all")).to_be_hidden()
        held[0].continue_()
        expect(panel.get_by_role("cell", name="second-dead")).to_be_visible()


@pytest.mark.usefixtures("filtered")
@pytest.mark.torture
def test_the_filter_is_used_by_keys_alone_on_a_small_screen(browser, url):
    with looking(browser, f"{url}/#messages", width=390) as page:
        page.get_by_label("Topic", exact=True).focus()
        page.keyboard.type("filtered")
        page.keyboard.press("Tab")
        page.keyboard.type("rec")  # the option that begins so
        page.get_by_role("button", name="Find").focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{url}/#messages?state=recalled&topic=filtered")
        expect_bodies(page, "taken 1", "taken 0")
        away = page.get_by_role("link", name="Do not filter by state: recalled")
        away.focus()
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{url}/#messages?topic=filtered")
        expect(page.locator("#panel-messages h3")).to_be_focused()


# ---------------------------------------------------------------------- what can be done


def test_a_message_is_sent_found_by_id_and_by_key_rescheduled_and_recalled(page):
    page.get_by_role("button", name="Send a test message").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Topic").fill("by-hand")
    dialog.get_by_label("Body").fill("close order 17")
    dialog.get_by_label("After").fill("2h")
    dialog.get_by_text("Tags, keys, properties").click()
    dialog.get_by_label("Deduplication key").fill("close-17")
    dialog.get_by_label("Properties").fill("customer=Ada\nREGION=eu")
    dialog.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Show it").click()
    expect(dialog).to_contain_text("close order 17")
    dialog.get_by_text("Properties (").click()
    expect(dialog).to_contain_text("Ada")
    dialog.get_by_text("History").click()
    expect(dialog.locator(".timeline")).to_contain_text("sent")
    message_id = dialog.locator("code").text_content()
    page.keyboard.press("Escape")
    page.get_by_label("Id or key").fill("close-17")
    page.get_by_role("search").get_by_label("Topic").fill("by-hand")
    page.get_by_role("button", name="Find").click()
    expect(dialog).to_contain_text(message_id)
    page.keyboard.press("Escape")
    page.get_by_label("Id or key").fill(message_id)
    page.get_by_role("search").get_by_label("Topic").fill("")
    page.get_by_role("button", name="Find").click()
    dialog.get_by_label("After").fill("3d")
    dialog.get_by_role("button", name="Reschedule").click()
    expect(dialog).to_contain_text(re.compile(r"in (2 d 23 h|3 d)"))
    dialog.get_by_role("button", name="Recall", exact=True).click()
    page.get_by_role("button", name="Recall it").click()
    expect(dialog.locator(".pill")).to_have_text("recalled")


def test_what_is_wrong_is_said_where_it_was_done(browser, url):
    with looking(browser, url, expected=("status of 400",)) as page:
        page.get_by_role("button", name="Send a test message").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("After").fill("soon")
        with page.expect_response(lambda response: response.status == 400):
            dialog.get_by_role("button", name="Send").click()
        expect(dialog.get_by_role("alert")).to_contain_text("soon")
        page.keyboard.press("Escape")
        ask_for_what_ends_before_it_begins(page)
        expect(page.get_by_role("alert")).to_contain_text("The time ends before it begins.")


def test_many_are_recalled_only_after_they_were_counted(page, url):
    ask(url, "POST", "/v1/messages", [{"topic": "many", "delay": "1d", "tags": "a"}] * 3)
    send(url, "many", delay="1d", tags="b")
    list_topic(page, "many", 4)
    page.get_by_role("button", name="Recall many").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tags").fill("a")
    expect(dialog.get_by_role("button", name="Recall")).to_be_hidden()
    dialog.get_by_role("button", name="Count them").click()
    dialog.get_by_role("button", name="Recall 3 messages").click()
    expect(page.get_by_text("Recalled 3 messages.")).to_be_visible()
    expect(page.locator("#panel-messages tbody tr")).to_have_count(1)


def test_tasks_are_recalled_with_many_only_if_their_box_is_ticked(page, url):
    due = {"due_from_ms": 1, "key_prefix": "box-"}
    ask(url, "POST", "/v1/tasks", {"url": "https://example.com/", "delay": "1d", "dedup_key": "box-1"})
    send(url, "boxed", delay="1d", dedup_key="box-2")
    assert ask(url, "POST", "/v1/messages/recall", due | {"reserved": True, "dry_run": True})["matched"] == 2
    page.goto(f"{url}/#messages")
    page.get_by_role("button", name="Recall many").click()
    dialog = page.get_by_role("dialog")
    box = dialog.get_by_role("checkbox", name="Also the service's own")
    expect(box).not_to_be_checked()
    dialog.get_by_label("Key begins with").fill("box-")
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog.get_by_role("button", name="Recall 1 message")).to_be_visible()
    box.check()
    expect(dialog.get_by_role("button", name="Recall 1 message")).to_be_hidden()
    dialog.get_by_role("button", name="Count them").click()
    expect(dialog.get_by_role("button", name="Recall 2 messages")).to_be_visible()
    page.keyboard.press("Escape")
    page.goto(f"{url}/#messages?overdue=1")
    page.get_by_role("button", name="Recall many").click()
    expect(box).to_be_checked()


def test_lists_are_turned_a_page_at_a_time(page, url):
    ask(url, "POST", "/v1/messages", [{"topic": "paged", "delay": "1d"}] * 60)
    list_topic(page, "paged", 50)
    panel = page.get_by_role("tabpanel", name="Messages")
    panel.get_by_role("button", name="Next").click()
    expect(panel.locator("tbody tr")).to_have_count(10)
    expect(panel.locator("h3")).to_be_focused()
    expect(panel.get_by_role("button", name="Next")).to_be_disabled()
    panel.get_by_role("button", name="Previous").click()
    expect(panel.locator("tbody tr")).to_have_count(50)


def test_dead_letters_are_looked_at_redriven_and_dropped(page, url):
    ask(url, "POST", "/v1/messages", [{"topic": "dying", "body": f"letter {n}"} for n in range(3)])
    fail(url, "dying", "undertakers", count=3)
    open_tab(page, "Groups").get_by_role("row", name="undertakers").get_by_role("link", name="3").click()
    panel = page.get_by_role("tabpanel", name="Dead letters")
    expect(panel.locator("tbody tr")).to_have_count(3)
    expect(panel).to_contain_text("no database")
    panel.locator("tbody a").first.click()
    expect(page.get_by_role("dialog", name="Dead letter")).to_contain_text("letter 0")
    page.keyboard.press("Escape")
    panel.get_by_role("checkbox").first.check()
    panel.get_by_role("button", name="Redrive chosen").click()
    page.get_by_role("button", name="Redrive", exact=True).click()
    expect(page.get_by_text("Redriven: 1.")).to_be_visible()
    expect(panel.locator("tbody tr")).to_have_count(2)
    panel.get_by_role("button", name="Drop all").click()
    page.get_by_role("button", name="Drop", exact=True).click()
    expect(panel).to_contain_text("dying/undertakers has no dead letters.")
    assert ask(url, "GET", "/v1/topics/dying/groups/undertakers")["ready"] == 1


def test_a_dead_letter_is_named_by_what_opens_and_its_original_beside_it(page, url):
    original = send(url, "copied", delay="1ms")
    fail(url, "copied", "copiers", count=1, reason="no disk")
    open_tab(page, "Groups").get_by_role("row", name="copiers").get_by_role(
        "link", name="1", exact=True
    ).click()
    row = page.get_by_role("tabpanel", name="Dead letters").get_by_role("row", name=original["id"])
    expect(row.get_by_role("link")).to_have_count(2)
    letter, origin = row.get_by_role("link").all()
    assert origin.text_content() == original["id"] != letter.text_content()
    letter.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_have_text(letter.text_content())
    for text in ("%DLQ%copiers", original["id"], "no disk"):
        expect(dialog.locator("dl").first).to_contain_text(text)
    dialog.get_by_role("link", name=original["id"]).click()
    expect(dialog.locator("code")).to_have_text(original["id"])
    page.keyboard.press("Escape")
    expect(dialog.locator("code")).to_have_text(letter.text_content())
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    origin.click()
    expect(dialog.locator("code")).to_have_text(original["id"])


def test_letters_that_were_chosen_stay_so_when_asked_for_again_but_not_as_those_of_another_group(page, url):
    for group in ("chosen-one", "chosen-two"):
        send(url, group, delay="1ms")
        fail(url, group, group, count=1)
    panel = open_tab(page, "Dead letters")

    def show(group):
        name_group(panel, group)
        panel.get_by_role("button", name="Show").click()
        expect(panel).to_contain_text(f"1 dead letter of {group} on this page")
        return panel.get_by_role("checkbox")

    show("chosen-one").check()
    with page.expect_response(re.compile("dead-letters")):
        panel.get_by_role("button", name="Show").click()
    expect(show("chosen-one")).to_be_checked()
    expect(show("chosen-two")).not_to_be_checked()


def test_a_late_answer_is_not_shown_as_that_of_another_group(browser, url):
    for group in ("late-one", "late-two"):
        send(url, group, delay="1ms")
        fail(url, group, group, count=1)
    held = []

    def hold_first(route):
        if held:
            route.continue_()
        else:
            held.append(route)

    with looking(browser, "about:blank") as page:
        page.route("**/dead-letters?*", hold_first)
        with page.expect_request("**/dead-letters?*"):
            page.goto(f"{url}/#letters")
        panel = page.get_by_role("tabpanel", name="Dead letters")
        first = panel.get_by_label("Group").input_value()
        names = ("late-two/late-two", "late-one/late-one")
        wanted = next(group for group in names if group != first)
        panel.get_by_label("Group").fill(wanted)
        panel.get_by_role("button", name="Show").click()
        shown = panel.get_by_text(f"1 dead letter of {wanted} on this page")
        expect(shown).to_be_visible()
        with page.expect_response(f"**/{first.partition('/')[2]}/dead-letters?*"):
            held[0].continue_()
        page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
        expect(shown).to_be_visible()
        expect(panel.get_by_role("cell", name=wanted.partition("/")[0], exact=True)).to_be_visible()


def test_a_group_that_is_being_typed_is_not_typed_over(browser, url):
    send(url, "typed", delay="1ms")
    fail(url, "typed", "typed", count=1)
    held = {}
    with looking(browser, "about:blank") as page:
        page.route("**/v1/groups?*", lambda route: held.update(groups=route))
        with page.expect_request("**/v1/groups?*"):
            page.goto(f"{url}/#letters")
        wanted = page.get_by_label("Group", exact=True)
        wanted.fill("typ")
        held["groups"].continue_()
        expect(page.locator("#panel-letters tbody tr").first).to_be_visible()
        expect(wanted).to_have_value("typ")


@pytest.mark.parametrize("width", [1280, rarely(1000), rarely(768), 320])
def test_a_long_reason_is_read_in_full_without_pointing_at_it(browser, url, width):
    topic = f"long-{width}"
    reason = ("connection to db-primary.example:5432 refused; " * 8)[:250] + "x" * 240 + " the-end"
    send(url, topic, delay="1ms")
    fail(url, topic, topic, count=1, reason=reason)
    with looking(browser, f"{url}/#letters", width=width) as page:
        panel = page.get_by_role("tabpanel", name="Dead letters")
        name_group(panel, topic)
        panel.get_by_role("button", name="Show").click()
        cell = panel.get_by_role("cell", name="the-end")
        expect(cell).to_have_text(reason)
        box = box_of(cell)
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth")
        assert panel.locator(".scroll").evaluate("box => box.scrollWidth <= box.clientWidth")


@pytest.mark.parametrize("width", [rarely(1280), 320])
def test_why_a_subscription_or_a_schedule_stands_still_is_in_its_list(browser, url, width):
    why = "the endpoint answered 410 Gone: " + "x" * 200
    with looking(browser, url, width=width) as page:

        def troubled(route):
            content = route.fetch().json()
            for one in content.get("subscriptions", []):
                one.update(status="disabled", disabled=why)
            for one in content.get("schedules", []):
                one["problem"] = why
            route.fulfill(json=content)

        page.route(re.compile(r"/v1/(subscriptions|schedules)\?"), troubled)
        for name in ("Subscriptions", "Schedules"):
            panel = open_tab(page, name)
            expect(panel.get_by_text(why).first).to_be_visible()
            assert panel.locator(".scroll").evaluate("box => box.scrollWidth <= box.clientWidth")


@pytest.mark.torture
def test_notices_lie_over_nothing_of_a_dialog(browser, url):
    send(url, "covered", delay="1d", dedup_key="covered")
    with looking(browser, url, width=390, height=420, expected=("status of 400",)) as page:
        ask_for_what_ends_before_it_begins(page)
        notice = page.get_by_role("alert")
        expect(notice).to_contain_text("The time ends before it begins.")
        dialog = page.get_by_role("dialog")
        page.get_by_role("button", name="Send a test message").click()
        for button in every(dialog.get_by_role("button"), 2):
            button.click(trial=True)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Clear", exact=True).click()
        page.get_by_label("Id or key").fill("covered")
        page.get_by_role("search").get_by_label("Topic").fill("covered")
        page.get_by_role("button", name="Find").click()
        dialog.get_by_label("After").fill("soon")
        dialog.get_by_role("button", name="Reschedule").click()
        expect(dialog.get_by_role("alert")).to_contain_text("soon")
        expect(dialog.get_by_role("button", name="Reschedule")).to_be_in_viewport(ratio=1)
        over = box_of(dialog.get_by_role("alert"))
        for button in every(dialog.locator(".head button, .inside button"), 2):
            button.click(trial=True)
            box = box_of(button)
            assert box["y"] + box["height"] <= over["y"]
        page.keyboard.press("Escape")
        expect(notice).to_have_count(0)


def test_escape_dismisses_the_newest_notice_of_the_page(page):
    ask_for_what_ends_before_it_begins(page)
    expect(page.get_by_role("alert")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_subscriptions_and_schedules_are_looked_at_paused_and_resumed(page, url):
    target = {"topic": "pushed", "url": "https://hooks.example/x", "id": "pausable", "paused": True}
    ask(url, "POST", "/v1/subscriptions", target)
    ask(url, "PUT", "/v1/schedules/pausable", {"topic": "planned", "body": "x", "every": "1h"})
    panel = open_tab(page, "Subscriptions")
    panel.get_by_role("link", name="pausable", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("https://hooks.example/x")
    page.keyboard.press("Escape")
    for name in ("Subscriptions", "Schedules"):
        panel = open_tab(page, name)
        first, second = ("Resume", "Pause") if name == "Subscriptions" else ("Pause", "Resume")
        panel.get_by_role("button", name=f"{first} pausable").click()
        panel.get_by_role("button", name=f"{second} pausable").click()
        expect(panel.get_by_role("button", name=f"{first} pausable")).to_be_visible()


def test_a_schedule_is_made_in_words_changed_run_now_and_deleted(page, url):
    panel = open_tab(page, "Schedules")
    panel.get_by_role("button", name="New schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("by-hand")
    dialog.get_by_label("Topic").fill("planned")
    dialog.get_by_label("Body").fill("count the stock")
    dialog.get_by_label("Cron", exact=True).fill("15 9 * * 1-5")
    expect(dialog).to_contain_text("at 09:15 on Monday to Friday")
    dialog.get_by_label("Zone of the cron rule").fill("Europe/Berlin")
    dialog.get_by_role("button", name="Create").click()
    panel.get_by_role("link", name="by-hand").click()
    expect(dialog).to_contain_text("In Europe/Berlin")
    expect(dialog.get_by_role("cell", name=re.compile("^Mon.*09:15:00$")).first).to_be_visible()
    dialog.get_by_role("button", name="Run now").click()
    expect(dialog).to_contain_text("its message was sent to planned")
    dialog.get_by_role("button", name="Edit").click()
    dialog.last.get_by_label("Body").fill("count it twice")
    dialog.last.get_by_role("button", name="Save").click()
    expect(dialog.locator(".body")).to_have_text("count it twice")
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(dialog).to_have_count(0)
    expect(panel.get_by_role("link", name="by-hand")).to_have_count(0)
    sent = ask(url, "GET", "/v1/topics/planned/queues/0/messages?wait_ms=20000")["messages"]
    assert "count the stock" in [message["body"] for message in sent]


def test_a_schedule_that_others_have_changed_is_not_overwritten(browser, url):
    ask(url, "PUT", "/v1/schedules/shared", {"topic": "planned", "body": "x", "every": "1h"})
    with looking(browser, f"{url}/#schedules", expected=("status of 412",)) as page:
        page.get_by_role("link", name="shared").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Edit").click()
        dialog.last.get_by_label("Jitter").fill("5")
        ask(url, "POST", "/v1/schedules/shared/pause")
        dialog.last.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_be_visible()
    kept = ask(url, "GET", "/v1/schedules/shared")
    assert (kept["paused"], kept["jitter_ms"]) == (True, 0)


def test_a_new_schedule_does_not_replace_one_of_its_name(browser, url):
    ask(url, "PUT", "/v1/schedules/taken", {"topic": "planned", "body": "first", "every": "1h"})
    with looking(browser, f"{url}/#schedules", expected=("status of 412",)) as page:
        page.get_by_role("button", name="New schedule").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("taken")
        dialog.get_by_label("Topic").fill("planned")
        dialog.get_by_label("Or at an interval").fill("15m")
        dialog.get_by_role("button", name="Create").click()
        expect(page.get_by_role("alert")).to_be_visible()
    assert ask(url, "GET", "/v1/schedules/taken")["body"] == "first"


def test_what_is_not_edited_stays_as_it_was(page, url):
    text = "one\r\ntwo"
    ask(url, "PUT", "/v1/schedules/lines", {"topic": "planned", "body": text, "every": "1h"})
    open_tab(page, "Schedules").get_by_role("link", name="lines").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Edit").click()
    dialog.last.get_by_label("Jitter").fill("5")
    dialog.last.get_by_role("button", name="Save").click()
    expect(dialog.locator("dl").first).to_contain_text("Jitter")
    kept = ask(url, "GET", "/v1/schedules/lines")
    assert (kept["body"], kept["jitter_ms"]) == (text, 5_000)


def test_the_tags_of_a_subscription_are_taken_away(page, url):
    target = {"topic": "pushed", "url": "https://hooks.example/x", "id": "tagged", "paused": True}
    ask(url, "POST", "/v1/subscriptions", target | {"tags": "paid"})
    open_tab(page, "Subscriptions").get_by_role("link", name="tagged", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Edit").click()
    dialog.last.get_by_label("Tags").fill("")
    dialog.last.get_by_role("button", name="Save").click()
    expect(dialog.locator("dl").first).to_contain_text("Tagsany")
    assert ask(url, "GET", "/v1/subscriptions/tagged")["tags"] == "*"


def test_a_subscription_is_made_with_its_secret_shown_once_and_its_attempts_listed(browser, url):
    attempts = [
        {"at_ms": 1_800_000_000_000, "message_id": "0" * 24, "attempt": 3, "kind": "failed", "latency_ms": 12}
        | {"reason": "HTTP 503", "status": 503, "answer": "the queue is full", "next_attempt_ms": None},
        {"at_ms": 1_800_000_000_000, "message_id": "1" * 24, "attempt": 12, "kind": "failed", "latency_ms": 1}
        | {"reason": "no connection: Connection refused", "next_attempt_ms": 1_800_000_600_000},
    ]
    with looking(browser, f"{url}/#subscriptions", expected=("status of 404",)) as page:
        page.get_by_role("button", name="New subscription").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Topic").fill("pushed-by-hand")
        dialog.get_by_label("URL").fill("https://hooks.example/by-hand")
        dialog.get_by_label("Id").fill("by-hand")
        dialog.get_by_role("button", name="Create").click()
        expect(dialog.locator(".body")).to_have_text(re.compile("^whsec_"))
        page.keyboard.press("Escape")
        page.route("**/by-hand/attempts", functools.partial(answer_with, {"attempts": attempts}))
        page.get_by_role("link", name="by-hand", exact=True).click()
        row = dialog.get_by_role("row", name="the queue is full")
        expect(row).to_contain_text("HTTP 503")
        expect(row).to_contain_text("attempt 3, 12 ms")
        expect(dialog.get_by_role("row", name="refused")).to_contain_text("attempt 12, 1 ms, next ")
        scroll = dialog.locator(".scroll")
        assert scroll.evaluate("box => box.scrollWidth <= box.clientWidth"), "no column is out of sight"
        page.unroute("**/by-hand/attempts")
        row.get_by_role("button", name=re.compile("^Send again")).click()
        expect(dialog.get_by_role("alert")).to_contain_text("0" * 24)
        dialog.get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete it").click()
        expect(page.get_by_role("link", name="by-hand", exact=True)).to_have_count(0)


def test_a_group_is_rewound_and_a_topic_paused_purged_and_deleted(page, url):
    ask(url, "POST", "/v1/messages", [{"topic": "handled", "body": f"m {n}"} for n in range(3)])
    ask(url, "POST", "/v1/messages", [{"topic": "handled", "delay": "1d"}] * 2)
    ask(url, "PUT", "/v1/topics/handled/groups/readers", {"start": "tail"})
    open_tab(page, "Groups").get_by_role("row", name="handled").get_by_role("link", name="readers").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Rewind").click()
    dialog.last.get_by_label("Continue from").select_option("head")
    dialog.last.get_by_role("button", name="Rewind").click()
    expect(dialog.locator("dl").first).to_contain_text("Lag3")
    page.keyboard.press("Escape")
    open_tab(page, "Topics").get_by_role("link", name="handled", exact=True).click()
    dialog.get_by_role("button", name="Pause handled").click()
    expect(dialog.locator("dl").first).to_contain_text("paused")
    dialog.get_by_role("button", name="Resume handled").click()
    expect(dialog.locator("dl").first).to_contain_text("Consumersreceive")
    dialog.get_by_role("button", name="Purge").click()
    dialog.last.get_by_label("Scheduled messages").check()
    dialog.last.get_by_role("button", name="Count them").click()
    expect(dialog.last).to_contain_text("This purges 2 scheduled messages and 0 delivered messages")
    page.get_by_role("button", name="Purge it").click()
    expect(dialog.locator("dl").first).to_contain_text("Scheduled0")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.last).to_contain_text("This also deletes 3 delivered messages, 1 group.")
    page.get_by_role("button", name="Delete it").click()
    expect(open_tab(page, "Topics").get_by_role("link", name="handled", exact=True)).to_have_count(0)


def test_the_settings_of_a_group_are_in_words(page, url):
    backoff = {"type": "exponential", "initial_ms": 2_000, "factor": 3, "max_ms": HOUR_MS}
    ask(url, "PUT", "/v1/topics/told/groups/patient", {"backoff": backoff, "invisible_ms": 90_000})
    page.goto(f"{url}/#groups?open=group:told/patient")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2.0 s, then 3 times as long each time, up to 1 h")
    expect(dialog).to_contain_text("Lease1 min 30 s")
    expect(dialog).not_to_contain_text("[object")


def test_dead_letters_are_counted_by_reason_and_those_of_one_reason_redriven(page, url):
    for count, reason in ((2, "no database"), (3, "no printer")):
        ask(url, "POST", "/v1/messages", [{"topic": "reasoned", "body": "x"}] * count)
        fail(url, "reasoned", "clerks", count=count, reason=reason)
    page.goto(f"{url}/#letters?group=reasoned%2Fclerks")
    panel = page.get_by_role("tabpanel", name="Dead letters")
    expect(panel.get_by_role("table", name="Dead letters of").locator("tbody tr")).to_have_count(5)
    panel.get_by_role("button", name="Redrive these 3: no printer").click()
    page.get_by_role("button", name="Redrive", exact=True).click()
    expect(page.get_by_text("Redriven: 3.")).to_be_visible()
    expect(panel.get_by_role("button", name="Redrive these 2: no database")).to_be_visible()
    panel.locator("summary").click()
    expect(panel.locator("tbody tr:visible")).to_have_count(2)


def test_dead_letters_are_filtered_as_the_address_says_and_all_of_the_filter_dropped(page, url):
    for number, reason in enumerate(("no database", "no printer", "no printer")):
        send(url, "sieved", dedup_key=f"key-{number}")
        fail(url, "sieved", "sifters", count=1, reason=reason)
    page.goto(f"{url}/#letters?group=sieved%2Fsifters")
    panel = page.get_by_role("tabpanel", name="Dead letters")
    rows = panel.get_by_role("table", name="Dead letters of").locator("tbody tr")
    expect(rows).to_have_count(3)
    panel.get_by_role("link", name="List those with the reason no printer").click()
    expect(rows).to_have_count(2)
    assert page.url.endswith("#letters?group=sieved%2Fsifters&reason=no%20printer")
    expect(panel.get_by_role("textbox", name="Reason contains")).to_have_value("no printer")
    panel.get_by_role("textbox", name="Key").fill("key-2")
    panel.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    panel.get_by_role("link", name="Do not filter by reason").click()
    expect(rows).to_have_count(1)
    page.go_back()
    page.go_back()
    expect(rows).to_have_count(2)
    panel.get_by_role("button", name="Drop all that match").click()
    expect(page.get_by_role("dialog")).to_contain_text("reason contains “no printer”")
    page.get_by_role("button", name="Drop", exact=True).click()
    expect(panel).to_contain_text(
        "No dead letter of sieved/sifters meets all of this: reason contains “no printer”."
    )
    panel.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(1)
    panel.get_by_label("Group", exact=True).fill("sifters")
    panel.get_by_label("On topic").fill("sieved")
    panel.get_by_role("button", name="Show").click()
    expect(panel.get_by_role("link", name="Do not filter by topic")).to_be_visible()
    expect(rows).to_have_count(1)
    panel.get_by_label("Group", exact=True).fill("other/sifters")
    panel.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert")).to_contain_text("other/sifters is a group of the topic other.")


def test_chosen_messages_are_recalled_and_others_stay(page, url):
    ask(url, "POST", "/v1/messages", [{"topic": "picked", "delay": "1d"}] * 4)
    rows = list_topic(page, "picked", 4)
    panel = page.get_by_role("tabpanel", name="Messages")
    for number in range(3):
        rows.nth(number).get_by_role("checkbox").check()
    panel.get_by_role("button", name="Recall 3 chosen messages").click()
    page.get_by_role("button", name="Recall", exact=True).click()
    expect(page.get_by_text("Recalled 3 messages.")).to_be_visible()
    expect(panel.locator("tbody tr")).to_have_count(1)
    expect(panel.get_by_role("button", name=re.compile("chosen"))).to_have_count(0)


def test_json_is_indented_with_its_numbers_as_they_are_and_a_body_is_copied_as_it_was_sent(browser, url):
    body = '{"order":12345678901234567890,"lines":[{"n":1.50}],"none":[],"text":"a: {\\"b\\"}, c"}'
    sent = send(url, "json", body=body, delay="1d")
    with looking(browser, f"{url}/#messages?open=message:{sent['id']}") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        shown = page.get_by_role("dialog").locator(".body")
        expect(shown).to_contain_text('"order": 12345678901234567890,')
        text = shown.text_content()
        assert '  "lines": [\n    {\n      "n": 1.50\n    }\n  ],' in text
        assert orjson.loads(text) == orjson.loads(body)
        page.get_by_role("button", name="Copy the body").click()
        expect(page.get_by_text("The body is copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == body
        page.get_by_text("History").click()
        expect(page.locator(".timeline li").first).to_contain_text(re.compile(r"\d\d:\d\d:\d\d\.\d{3}.*sent"))


def test_an_empty_service_teaches_and_sends_messages_to_look_at(browser, tmp_path):
    with serving(tmp_path / "data") as running, looking(browser, running.url) as page:
        panel = page.get_by_role("tabpanel", name="Messages")
        expect(panel.locator(".commands li")).to_have_count(4)
        button = panel.get_by_role("button", name="Send 1,000 demo messages over two minutes")
        page.set_viewport_size({"width": 320, "height": 900})
        assert button.evaluate("one => one.scrollWidth <= one.clientWidth"), "its words are not cut off"
        page.set_viewport_size({"width": 1280, "height": 900})
        button.click()
        expect(panel.locator("tbody tr")).to_have_count(50)
        waiting = ask(running.url, "GET", "/v1/wheel")["pending"]
        assert 500 < waiting <= 1_000
        for name in TABS[2:]:
            expect(open_tab(page, name).locator(".commands li")).to_have_count(4)


def commands_of(page, tab):
    """The commands that an empty list teaches, as its buttons copy them."""
    panel = open_tab(page, tab)
    commands = []
    for line in every(panel.locator(".commands li"), 3):
        line.get_by_role("button", name="Copy").click()
        commands.append(page.evaluate("navigator.clipboard.readText()"))
    assert commands == panel.locator(".commands code").all_text_contents()
    return commands


def test_each_command_that_an_empty_list_teaches_works_when_it_is_pasted(browser, tmp_path):
    with serving(tmp_path / "data") as running:
        with looking(browser, running.url) as page:
            page.context.grant_permissions(["clipboard-read", "clipboard-write"])
            taught = {name: commands_of(page, name) for name in TABS}
        for name, commands in taught.items():
            exported, *rest = map(shlex.split, commands)
            assert exported == ["export", f"TIMERWHEEL_URL={running.url}"], "it is not on the usual port"
            assert len(rest) == 3, name
            for program, *words in rest:
                assert program == "timerwheel"
                paste(words, running.url)


def paste(words, url):
    """Run a command of the command line: to its end, or until it has said something and Ctrl-C ends it."""
    if words[0] not in {"top", "listen"} and "--follow" not in words:
        done = timerwheel(*words, TIMERWHEEL_URL=url)
        assert done.code == 0, (words, done.err)
        return
    with started(*words, TIMERWHEEL_URL=url) as process:
        assert process.stdout.readline().strip(), words
        process.send_signal(signal.SIGINT)
        assert process.wait() in {0, 130}, words


def test_commands_name_no_service_where_the_command_line_looks_for_it_by_itself(browser, url):
    usual = "http://127.0.0.1:8686"

    def fetch(route):
        route.fulfill(response=route.fetch(url=route.request.url.replace(usual, url)))

    with looking(browser, "about:blank", expected=("ERR_FAILED",)) as page:
        page.route(f"{usual}/**", fetch)
        page.route("**/v1/live", lambda route: route.abort())
        page.route("**/v1/groups?*", functools.partial(answer_with, {"groups": []}))
        page.goto(f"{usual}/#groups")
        expect(page.locator(".commands li:visible")).to_have_count(3)
        expect(page.locator(".commands:visible")).not_to_contain_text("TIMERWHEEL_URL")


@pytest.mark.torture
def test_a_page_without_the_browsers_clipboard_copies_too(browser, url):
    """Over plain HTTP from another machine, for example."""
    sent = send(url, "copied", body="as it was sent", delay="1d")
    without = "Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined })"
    with looking(browser, f"{url}/#messages?open=message:{sent['id']}", script=without) as page:
        button = page.get_by_role("button", name="Copy the body")
        button.click()
        expect(page.get_by_text("The body is copied")).to_be_visible()
        expect(button).to_be_focused()
        page.keyboard.press("Escape")
        page.get_by_label("Id or key").focus()
        page.keyboard.press("Control+V")
        expect(page.get_by_label("Id or key")).to_have_value("as it was sent")


def test_all_of_it_is_reached_by_keys_alone(browser, url):
    with looking(browser, url) as page:
        sent = send(url, "keyed", delay="1d", dedup_key="by-keys")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the lists")).to_be_focused()
        wheel = page.get_by_role("listbox")
        for _ in range(10):
            if wheel.evaluate("element => element === document.activeElement"):
                break
            page.keyboard.press("Tab")
        expect(wheel).to_be_focused()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        expect(page.locator(".readout")).to_contain_text("hour")
        page.keyboard.press("PageDown")
        expect(page.locator(".readout")).to_contain_text("scheduled")
        page.keyboard.press("Enter")
        expect(page.locator("#panel-messages h3")).to_be_focused()
        expect(page.locator("#panel-messages h3")).to_contain_text("Slot of an hour")
        page.get_by_role("tab", name="Messages").focus()
        for name in [*TABS[1:], TABS[0]]:
            page.keyboard.press("ArrowRight")
            expect(page.get_by_role("tab", name=name)).to_be_focused()
            expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
        page.get_by_label("Id or key").focus()
        page.keyboard.type("by-keys")
        page.keyboard.press("Tab")
        page.keyboard.type("keyed")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text(sent["id"])
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("search").get_by_label("Topic")).to_be_focused()


# ---------------------------------------------------------------------- what comes from outside


def test_markup_in_messages_stays_text(page, url):
    message = {"topic": "markup", "body": MARKUP, "tags": MARKUP, "keys": MARKUP.replace(" ", "_")}
    sent = send(url, delay="1d", dedup_key=MARKUP, properties={MARKUP: MARKUP}, **message)
    ask(url, "PUT", "/v1/schedules/markup", {"topic": "markup", "body": MARKUP, "every": "1d"})
    list_topic(page, "markup", 2)  # the schedule's next run is one
    row = page.get_by_role("row", name=sent["id"])
    expect(row).to_contain_text(MARKUP[:60])
    row.get_by_role("link").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".body")).to_have_text(MARKUP)
    dialog.get_by_text("Properties (").click()
    expect(dialog.locator("details dt").filter(has_text=MARKUP)).to_be_visible()
    page.keyboard.press("Escape")
    open_tab(page, "Schedules").get_by_role("link", name="markup", exact=True).click()
    expect(dialog.locator(".body")).to_have_text(MARKUP)
    assert page.title().endswith("timerwheel")
    assert page.locator("img").count() == 1
    assert page.locator("script").count() == 1


def test_markup_that_got_in_all_the_same_would_be_refused_by_the_browser(browser, url):
    with looking(browser, url, expected=("refused by policy", "Trusted")) as page:
        for attempt in (
            "document.body.innerHTML = '<b>taken</b>'",
            "document.querySelector('img').setAttribute('onerror', 'document.title = 1')",
            "document.createElement('script').src = '/console/app.js'",
        ):
            assert (
                page.evaluate(f"() => {{ try {{ {attempt}; return true }} catch {{ return false }} }}")
                is False
            )


# ---------------------------------------------------------------------- how it looks


@pytest.mark.parametrize(
    ("width", "scheme"), [rarely(1280, "dark"), (1000, "light"), rarely(390, "light"), (320, "dark")]
)
def test_nothing_is_wider_than_the_screen_and_all_text_can_be_read(browser, url, width, scheme):
    with looking(browser, url, width=width, scheme=scheme) as page:
        expect(page.locator("#stat-next")).to_have_text(re.compile(r"\d"))
        for name in TABS:
            open_tab(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            scrolling = page.locator(".scroll").evaluate_all(
                "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth).length"
            )
            assert scrolling == 0, name
            assert faint_texts(page) == [], name
        page.get_by_role("button", name="Send a test message").click()
        box = box_of(page.get_by_role("dialog"))
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert faint_texts(page) == []


def test_a_theme_that_was_chosen_stays(browser, url):
    dark = "matchMedia('(prefers-color-scheme: dark)').matches"
    with looking(browser, url) as page:
        assert not page.evaluate(dark)
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_label("Theme").select_option("dark")
        page.reload()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


# ---------------------------------------------------------------------- tokens, and an end


def make_token(data, *scopes, topics=(), name="watcher"):
    """Make a token in a data directory; its secret."""
    secret = tokens.new_secret()
    token = tokens.Token(
        name=name,
        starts=secret[:9],
        sha256=tokens.hash_of(secret),
        scopes=scopes,
        topics=topics,
        made_ms=0,
    )
    tokens.create(data, token)
    return secret


def give_token(page, secret):
    """Type a token into the dialog that asks for one."""
    page.get_by_role("dialog").get_by_label("Token").fill(secret)
    page.keyboard.press("Enter")


def test_a_token_is_asked_for_kept_in_the_tab_and_its_end_is_shown(browser, tmp_path):
    data = tmp_path / "data"
    secret = make_token(data, tokens.Scope.ADMIN)
    expected = ("status of 401", "ERR_", "status of 503")
    with serving(data) as running, looking(browser, running.url, expected=expected) as page:
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("token")
        page.keyboard.press("Escape")
        expect(page.locator("#trouble")).to_have_text(
            "The service asks for a token. Press Token to enter one."
        )
        expect(page.locator("#state")).to_have_text("no token")
        expect(dialog).to_have_count(0)
        page.get_by_role("button", name="Token", exact=True).click()
        give_token(page, "tw_wrong")
        expect(dialog).to_contain_text("does not contain a complete token")
        give_token(page, secret)
        expect(page.locator("#state")).to_have_text("ready")
        page.reload()
        expect(page.locator("#state")).to_have_text("ready")
        assert page.evaluate("localStorage.length") == 0
        page.get_by_role("tab", name="Groups").click()
        # The token sees all that there is.
        expect(page.get_by_role("tabpanel", name="Groups")).to_contain_text("No consumer group yet.")
        running.process.terminate()
        expect(page.locator("#state")).to_have_text("not connected")
        expect(page.locator("#trouble")).to_contain_text(re.compile("stopping|No response"))
        expect(page.locator("#trouble")).to_contain_text("reconnects by itself. It shows the state as of ")


@pytest.mark.parametrize(
    ("strange", "told"), [("é", "“é”"), ("ß", "“ß”"), (" ", "a space"), ("\u200b", "U+200B"), ("😀", "“😀”")]
)
def test_a_text_that_cannot_be_a_token_is_refused_where_it_was_typed(page, strange, told):
    page.get_by_role("button", name="Token", exact=True).click()
    give_token(page, f"tw_{strange}x")
    fault = page.get_by_role("dialog").get_by_role("alert")
    expect(fault).to_contain_text("only the letters A to Z and a to z, digits and “_”")
    expect(fault).to_contain_text(f"contains {told}")
    expect(page.get_by_role("dialog").get_by_label("Token")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#state")).to_have_text("ready")
    assert page.evaluate("sessionStorage.length") == 0


SCOPED = {
    "send": {
        "Messages": "Enter one of the token's topics above",
        "Topics": "This token sees no topic.",
        "Groups": "lacks the scope receive",
        "Dead letters": "lacks the scope receive",
        "Subscriptions": "lacks the scope receive",
        "Schedules": "This token sees no schedule.",
    },
    "receive": {
        "Messages": "Enter one of the token's topics above",
        "Topics": "This token sees no topic.",
        "Groups": "This token sees no consumer group.",
        "Dead letters": "This token sees no dead letter.",
        "Subscriptions": "This token sees no subscription.",
        "Schedules": "lacks the scope send",
    },
}


def test_what_the_token_may_not_do_is_not_offered(browser, tmp_path):
    data = tmp_path / "data"
    secrets = {
        "receive": make_token(data, tokens.Scope.RECEIVE, topics=("*",), name="reader"),
        "send": make_token(data, tokens.Scope.SEND, topics=("*",), name="sender"),
        "admin": make_token(data, tokens.Scope.ADMIN),
    }
    offered = {
        "Messages": {"Recall many": "send"},
        "Groups": {"New group": "admin"},
        "Subscriptions": {"New subscription": "receive"},
        "Schedules": {"New schedule": "send"},
    }
    expected = ("status of 401", "status of 403")
    with serving(data) as running:
        for scope, secret in secrets.items():
            with looking(browser, running.url, expected=expected) as page:
                with page.expect_response("**/v1/token"):
                    give_token(page, secret)
                expect(page.locator("#state")).to_have_text("ready")
                for name, buttons in offered.items():
                    page.get_by_role("tab", name=name).click()
                    panel = page.get_by_role("tabpanel", name=name)
                    for button, needs in buttons.items():
                        allowed = scope in ("admin", needs)
                        expect(panel.get_by_role("button", name=button)).to_have_count(int(allowed))
                sends = scope in ("admin", "send")
                expect(page.locator("#send")).to_be_visible(visible=sends)


@pytest.mark.parametrize("scope", ["receive", rarely("send")])
def test_each_list_says_what_the_token_may_not_see(browser, tmp_path, scope):
    data = tmp_path / "data"
    secret = make_token(data, tokens.Scope(scope), topics=("orders",))
    expected = ("status of 401", "status of 403")
    with serving(data) as running, looking(browser, running.url, expected=expected) as page:
        give_token(page, secret)
        expect(page.locator("#state")).to_have_text("ready")
        for name, words in SCOPED[scope].items():
            page.get_by_role("tab", name=name).click()
            panel = page.get_by_role("tabpanel", name=name)
            expect(panel).to_contain_text(words)
            refused = "lacks the scope" in words or name == "Messages"
            expect(panel.get_by_text("This token has no access to this.")).to_have_count(int(refused))
            assert "yet" not in panel.text_content()
        page.get_by_role("tab", name="Dead letters").click()
        name_group(page, "closers")
        page.get_by_role("button", name="Show", exact=True).click()
        expect(page.get_by_role("tabpanel", name="Dead letters").get_by_role("alert")).to_contain_text(
            "%DLQ%"
        )


def test_after_a_restart_the_page_comes_back_by_itself_lists_and_all(browser, tmp_path):
    data = tmp_path / "data"
    with serving(data) as first:
        send(first.url, "kept", delay="1d")
        with looking(browser, first.url, expected=("ERR_", "status of 503")) as page:
            expect(page.locator("#state")).to_have_text("ready")
            first.end(signal.SIGTERM)
            expect(page.locator("#state")).to_have_text("not connected")
            page.get_by_role("button", name="Renew").click()
            panel = page.get_by_role("tabpanel", name="Messages")
            expect(panel).to_contain_text("No response: the service is stopped")
            with serving(data, "--port", first.url.rpartition(":")[2]):
                expect(page.locator("#state")).to_have_text("ready")
                expect(page.locator("#trouble")).to_be_hidden()
                expect(panel.get_by_role("row", name="kept")).to_be_visible()
