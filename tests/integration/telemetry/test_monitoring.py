"""The dashboard, the alerts and the page about metrics, held against what a scrape has."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from tests.harness.promql import Query
from tests.harness.scraping import Scrape, scrape_engine
from tests.unit.project.test_docs import anchors, section, tables
from timerwheel.api.http.traffic import Traffic
from timerwheel.groups.config import GroupConfig, GroupTerms
from timerwheel.model.kafka_counts import Lag
from timerwheel.push.push import Push
from timerwheel.push.subscription import Draft

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
PROMETHEUS = yaml.safe_load((EXAMPLES / "prometheus/prometheus.yml").read_text())
GROUPS = yaml.safe_load((EXAMPLES / "prometheus/alerts.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
DASHBOARD = json.loads((EXAMPLES / "grafana/timerwheel.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
PAGE = (ROOT / "doc/metrics.md").read_text()

OF_PROMETHEUS = {"up"}  # which it makes for each target
OF_A_CLUSTER = {"timerwheel_journal_position": {"shard"}}  # of nodes with a journal, by the front of shards
TARGET_LABELS = {"instance", "job"}  # which it adds to each sample
FIXED_LABELS = {"within", "delivery", "when", "outcome"}  # whose values a scrape has all

SMALL = {"this", "that", "with", "from", "have", "thei", "they", "than", "were", "into", "when", "time"}

_LEGEND = re.compile(r"\{\{(\w+)\}\}")


def queries() -> dict[str, tuple[str, str]]:
    """Each query with the text that is told with its result, by where it stands."""
    found = {f"alert {name}": (rule["expr"], texts_of(rule)) for name, rule in ALERTS.items()}
    for title, panel in PANELS.items():
        for target in panel["targets"]:
            found[f"panel {title} {target['refId']}"] = (target["expr"], target["legendFormat"])
    for note in DASHBOARD["annotations"]["list"]:
        found[f"annotation {note['name']}"] = (note["expr"], note["textFormat"])
    return found


def texts_of(rule: dict) -> str:
    """What an alert says, with labels as a legend names them."""
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"{{\1}}", " ".join(rule["annotations"].values()))


def words(text: str) -> set[str]:
    """What a text is about: its words of four letters and more, each cut to the first four."""
    return {word[:4] for word in re.findall(r"[a-z]{4,}", text.lower())} - SMALL


async def answer(_: web.Request) -> web.Response:
    return web.Response()


@pytest.fixture
async def scrape(world) -> Scrape:
    """Of an engine that has something of everything."""
    await world.open()
    await world.engine.groups.put("orders", "g", GroupConfig(max_attempts=1))
    await world.send(0, 3_600_000)
    (delivery,) = await world.engine.groups.receive("orders", "g", terms=GroupTerms(create=True))
    await world.engine.groups.nack("orders", "g", [delivery.receipt], 0)
    await world.advance(5_000)
    route = web.UrlDispatcher().add_get("/v1/wheel", answer)
    traffic = Traffic()
    traffic.count(route, "GET", 200, 0.01)
    counters = world.engine.counters
    counters.front_calls["remoting", "SEND_V2", "SUCCESS"] += 1
    counters.begin_kafka().inlet[0] = Lag(7, 2)
    push = Push(world.engine)
    await push.start()
    try:
        await push.create(Draft(topic="orders", url="https://shop.example/", paused=True))
        return await scrape_engine(world.engine, rocketmq=True, traffic=traffic, push=push)
    finally:
        await push.close()


async def test_queries_name_metrics_labels_and_values_that_a_scrape_has(scrape):
    known = scrape.series() | OF_A_CLUSTER
    for where, (text, legend) in queries().items():
        query = Query(text)
        there = set(TARGET_LABELS)
        for metric, matchers, _ in query.selectors:
            assert metric in known.keys() | OF_PROMETHEUS, f"{where}: no metric {metric}"
            labels = known.get(metric, set()) | TARGET_LABELS
            there |= labels
            for label, operator, value in matchers:
                assert label in labels, f"{where}: {metric} has no label {label}"
                if label in FIXED_LABELS and operator in ("=", "!="):
                    assert value in scrape.values(metric, label), f"{where}: {label} is never {value}"
        assert set(query.grouped) <= there, where
        assert set(_LEGEND.findall(legend)) <= (there if query.labels is None else query.labels), where


async def test_the_dashboard_shows_every_metric(scrape):
    shown = {selector.metric for text, _ in queries().values() for selector in Query(text).selectors}
    for name, family in scrape.families.items():
        names = {name, *(sample.name for sample in family.samples)}
        assert names & shown or name.startswith("rocketmq_"), f"{name} is on no panel"


async def test_the_page_lists_every_metric_with_its_kind_and_labels(scrape):
    own, of_rocketmq = PAGE.split("## Dashboards made for RocketMQ")
    told = {}
    for heading in ("Messages", "Consumers and push", "Kafka", "Disk and index", "Service"):
        for name, kind, labels, about in tables(section(own, heading))[0]:
            assert about
            told[name.strip("`")] = (kind, set(re.findall(r"`(\w+)`", labels)))
    found = {}
    for name, family in scrape.families.items():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        found[name] = (family.type, labels)
    assert told == {name: facts for name, facts in found.items() if not name.startswith("rocketmq_")}
    named = {name for row in tables(of_rocketmq)[0] for name in re.findall(r"`(rocketmq_\w+)`", row[0])}
    assert named == found.keys() - told.keys()


async def test_the_page_and_the_help_of_a_metric_speak_of_the_same(scrape):
    meanings = {name: (about, own) for table in tables(PAGE) for name, *own, about in table}
    for names, (about, own) in meanings.items():
        for name in re.findall(r"`(\w+)`", names):
            family = scrape.families[name]
            assert words(family.documentation) & words(f"{about} {' '.join(own)}"), (
                f"{name}: {family.documentation!r} and {about!r} have no word in common"
            )


async def test_values_of_labels_that_the_page_names_are_those_of_a_scrape(scrape):
    rows = [row for table in tables(PAGE) for row in table if len(row) == 4]
    for name, _, labels, about in rows:
        for label in set(re.findall(r"`(\w+)`", labels)) & FIXED_LABELS:
            values = set(scrape.values(name.strip("`"), label))
            assert values == set(re.findall(r"`(\w+)`", about)), name


async def test_metrics_of_the_process_have_the_names_on_the_page(scrape):
    names = set(re.findall(r"`(process_\w+)`", PAGE))
    assert names == {sample.name for sample in scrape.samples if sample.name.startswith("process_")}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_is_wrong_and_what_to_do(name):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor in anchors((ROOT / file).read_text())
    (rows,) = tables(section((ROOT / "doc/operations.md").read_text(), "When an alert fires"))
    assert [row for row in rows if name in re.findall(r"\w+", row[0]) and all(row)], (
        "no line tells what to do"
    )


def test_what_an_alert_says_to_look_at_on_the_dashboard_is_there():
    (rows,) = tables(section((ROOT / "doc/operations.md").read_text(), "When an alert fires"))
    named = {title for row in rows for title in re.findall(r"\*([^*]+)\*", " ".join(row))}
    assert named
    assert named <= PANELS.keys()


def test_prometheus_scrapes_the_job_that_the_alerts_are_about():
    assert PROMETHEUS["rule_files"] == ["alerts.yml"]
    (job,) = PROMETHEUS["scrape_configs"]
    assert "metrics_path" not in job  # it asks for /metrics unless told otherwise
    jobs = {
        value
        for rule in ALERTS.values()
        for selector in Query(rule["expr"]).selectors
        for label, _, value in selector.matchers
        if label == "job"
    }
    assert jobs == {job["job_name"]}


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_has_a_unit_a_description_and_queries_its_data_source(title):
    panel = PANELS[title]
    unit = panel["options"]["yAxis"] if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]
    assert unit["unit"]
    assert panel["description"].endswith(".")
    for asked in (panel, *panel["targets"]):
        assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_stand_in_order_and_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert all(panel["gridPos"]["w"] == 24 for panel in DASHBOARD["panels"] if panel["type"] == "row")
    tops = [panel["gridPos"]["y"] for panel in DASHBOARD["panels"]]
    assert all(low <= high for low, high in pairwise(tops))
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert len(PANELS) == sum(panel["type"] != "row" for panel in DASHBOARD["panels"]), "two of one title"


def test_the_dashboard_asks_for_data_source_and_instance():
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "instance"}
    assert variables["datasource"]["type"] == "datasource"
    for where, (text, _) in queries().items():
        if not where.startswith("alert"):
            for selector in Query(text).selectors:
                assert ("instance", "=~", "$instance") in selector.matchers, where
