"""What the benchmark found: kept, compared, judged, and shown with the commands that show it again."""

from pathlib import Path

import pytest

from bench.claims import CLAIMS, Case, Claim, How, Verdict, judge
from bench.histograms import histogram
from bench.peers.registry import OURS, OURS_ASYNC, OURS_KAFKA, SYSTEMS
from bench.report import write_report
from bench.results import (
    LIKE,
    Entry,
    Figure,
    Peer,
    Run,
    Spread,
    Subject,
    by_subject,
    ratio,
    read,
    spread,
    write,
)
from bench.scenarios.consume import RECEIVE, case_name
from bench.tables import grids, of_scenario, remarks
from bench.wording import Cell, cell, heading, number, unit

PNG = b"\x89PNG\r\n\x1a\n"
PEER = "beanstalkd -f 0"
SINGLE = "64 connections, 1 a request"
RATE = "messages_per_s"
RUN = Run("r1", "2026-11-21T18:00:00+00:00", "python -m bench schedule", {"memory": "24 GiB"}, "abc1234+")


def sent(
    system: str, round_: int, per_s: float, *, case: str = SINGLE, run: str = "r1", fault: str | None = None
) -> Figure:
    return Figure(run, "schedule", case, system, round_, {RATE: per_s}, fault=fault)


def late(case: str, round_: int, *values_us: int, scenario: str = "backlog") -> Figure:
    return Figure("r1", scenario, case, OURS, round_, {}, {"lateness": histogram(values_us)})


def verdicts(entries: list[Entry], text: str) -> list[Verdict]:
    found = [judged.verdict for judged in judge(entries) if judged.claim.text == text]
    assert found, f"no claim {text!r}"
    return found


def whole_page() -> list[Entry]:
    """Every claim measured, by one round for each; two systems and two cases in one scenario."""
    entries: list[Entry] = [
        RUN,
        Peer("r1", OURS, "0.1.0", {"flush": "sync"}),
        Peer("r1", PEER, "1.13", {"-f": "0"}),
        Peer("r1", "RocketMQ 5 sync", "", {}, "python -m bench.peers.rocketmq fetch"),
        sent(PEER, 1, 5_000),
        sent(PEER, 2, 6_000),
        sent(OURS, 2, 11_000),
    ]
    figures: dict[Subject, dict[str, float]] = {}
    histograms: dict[Subject, dict[str, str]] = {}
    for claim in CLAIMS:
        case = claim.case.name.replace("*", "8 connections")
        subject = Subject(claim.case.scenario, case, claim.system)
        name, _, percentile = claim.figure.partition(" ")
        if percentile:
            histograms.setdefault(subject, {})[name] = histogram(range(1, 1001))
        else:
            figures.setdefault(subject, {})[name] = 42.5
    for subject in figures | histograms:
        found = figures.get(subject, {}), histograms.get(subject, {})
        entries.append(Figure("r1", *subject, 1, *found))
    return entries


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "RESULTS.md"
    write_report(whole_page(), path)
    return path


def test_entries_come_back_as_they_were_written(tmp_path: Path) -> None:
    entries = whole_page()
    for entry in entries:
        write(tmp_path / "results.jsonl", entry)
    assert read(tmp_path / "results.jsonl") == entries


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write(path, RUN)
    path.write_bytes(path.read_bytes() + b'{"kind":"figure","run":')
    with pytest.raises(ValueError, match=r"results\.jsonl:2 is not a result"):
        read(path)


def test_a_spread_has_the_median_the_least_and_the_most() -> None:
    rounds = [sent(OURS, at, per_s) for at, per_s in enumerate((300, 100, 110), 1)]
    assert spread(rounds, RATE) == Spread(110, 100, 300, 3)
    assert spread(rounds, "first_ms") is None
    assert spread(rounds, "latency p99") is None


def test_a_percentile_is_of_all_rounds_together() -> None:
    """A round of many weighs more than one of few, which a median of rounds would hide."""
    rounds = [late("0 pending", 1, *[1_000] * 990), late("0 pending", 2, *[50_000] * 10)]
    found = spread(rounds, "lateness p50")
    assert found is not None
    assert [round(value, 1) for value in found[:3]] == [1.0, 1.0, 50.0]
    assert found.rounds == 2


def test_an_empty_histogram_is_not_a_lateness_of_zero() -> None:
    assert spread([late("10,000,000 pending", 1)], "lateness p99") is None
    claim = "5,000 due a second with 10 M pending, lateness p99"
    assert verdicts([late("10,000,000 pending", 1)], claim) == [Verdict.NOT_MEASURED]


def test_a_ratio_compares_each_round_with_the_same_round() -> None:
    """The machine is three times as fast in the second round; the ratios do not show it."""
    ours = [sent(OURS, 1, 120), sent(OURS, 2, 450), sent(OURS, 3, 1)]
    theirs = [sent(PEER, 1, 100), sent(PEER, 2, 300), sent(PEER, 1, 7, run="another")]
    assert ratio(ours, theirs, RATE) == Spread(1.35, 1.2, 1.5, 2)


def test_a_round_with_a_fault_is_not_compared() -> None:
    ours = [sent(OURS, 1, 120), sent(OURS, 2, 450)]
    theirs = [sent(PEER, 1, 100), sent(PEER, 2, 300, fault="3 lost")]
    assert ratio(ours, theirs, RATE) == Spread(1.2, 1.2, 1.2, 1)
    assert ratio(ours[1:], theirs, RATE) is None
    assert ratio(ours, [sent(PEER, 1, 0)], RATE) is None


@pytest.mark.parametrize(
    ("how", "target", "values", "verdict"),
    [
        (How.AT_LEAST, 10_000, [10_000], Verdict.HELD),
        (How.AT_LEAST, 10_000, [9_999.9], Verdict.NOT_HELD),
        (How.ABOVE, 10_000, [10_000], Verdict.NOT_HELD),
        (How.ABOVE, 10_000, [10_000.1], Verdict.HELD),
        (How.AT_MOST, 10_000, [10_000], Verdict.HELD),
        (How.AT_MOST, 10_000, [10_000.1], Verdict.NOT_HELD),
        (How.AT_MOST, 10_000, [1, 10_000, 90_000], Verdict.HELD),
        (How.NEVER_ABOVE, 10_000, [1, 10_000, 90_000], Verdict.NOT_HELD),
        (How.NEVER_ABOVE, 0, [0, 0], Verdict.HELD),
        (How.AT_MOST, 10_000, [], Verdict.NOT_MEASURED),
    ],
)
def test_a_claim_is_judged_at_its_border(
    how: How, target: float, values: list[float], verdict: Verdict
) -> None:
    claim = Claim("rate", CLAIMS[0].case, RATE, how, target)
    [judged] = judge([sent(OURS, at, value) for at, value in enumerate(values)], [claim])
    assert judged.verdict is verdict


@pytest.mark.parametrize(("ours", "verdict"), [(1_500, Verdict.HELD), (1_499, Verdict.NOT_HELD)])
def test_a_claim_beside_a_peer_is_judged_by_the_ratio(ours: float, verdict: Verdict) -> None:
    entries: list[Entry] = [sent(OURS, 1, ours), sent(PEER, 1, 1_000)]
    assert verdicts(entries, "the same, beside beanstalkd -f 0") == [verdict]


def test_a_claim_beside_a_peer_is_not_measured_without_the_peer() -> None:
    assert verdicts([sent(OURS, 1, 50_000)], "the same, beside beanstalkd -f 0") == [Verdict.NOT_MEASURED]
    faulty: list[Entry] = [sent(OURS, 1, 50_000), sent(PEER, 1, 1_000, fault="1 lost")]
    assert verdicts(faulty, "the same, beside beanstalkd -f 0") == [Verdict.NOT_MEASURED]


def test_a_claim_beside_another_case_is_judged_by_the_ratio() -> None:
    claim = "single sends with 10 M pending, beside none pending"

    def entries(loaded: float) -> list[Entry]:
        rates = {"0 pending": 20_000, "10,000,000 pending": loaded}
        return [
            Figure("r1", "backlog", case, OURS, 1, {"schedule_per_s": rate}) for case, rate in rates.items()
        ]

    assert verdicts(entries(18_000), claim) == [Verdict.HELD]
    assert verdicts(entries(17_990), claim) == [Verdict.NOT_HELD]
    assert verdicts(entries(18_000)[1:], claim) == [Verdict.NOT_MEASURED]


def test_the_worst_of_several_cases_counts() -> None:
    entries: list[Entry] = [
        sent(OURS, 1, per_s, case=f"{connections} connections, 100 a request")
        for connections, per_s in ((4, 149_000), (8, 200_000))
    ]
    assert verdicts(entries, "sends in arrays of 100") == [Verdict.NOT_HELD]
    assert verdicts(entries[1:], "sends in arrays of 100") == [Verdict.HELD]
    assert verdicts(entries, "sends in arrays of 1,000") == [Verdict.NOT_MEASURED]
    at_most = Claim("rate", Case("schedule", "*, 100 a request"), RATE, How.AT_MOST, 150_000)
    [judged] = judge(entries, [at_most])
    assert judged.verdict is Verdict.NOT_HELD


def test_a_fault_makes_a_claim_not_held_however_fast_it_was() -> None:
    entries: list[Entry] = [sent(OURS, 1, 99_000), sent(OURS, 2, 99_000, fault="1 lost")]
    text = "single sends over 64 connections"
    assert verdicts(entries, text) == [Verdict.NOT_HELD]
    [judged] = [one for one in judge(entries) if one.claim.text == text]
    assert judged.faults == (f"{SINGLE}, round 2: 1 lost",)
    refused: list[Entry] = [Figure("r1", "schedule", SINGLE, OURS, 1, {}, fault="refused")]
    assert verdicts(refused, text) == [Verdict.NOT_HELD]
    others: list[Entry] = [sent(OURS, 1, 99_000), sent(OURS_ASYNC, 1, 1, fault="1 lost")]
    assert verdicts(others, text) == [Verdict.HELD]


def test_claims_and_comparisons_name_systems_that_are_known() -> None:
    assert {claim.peer for claim in CLAIMS} - {""} <= set(SYSTEMS)
    without_peer = {OURS_KAFKA}
    assert set(LIKE) | {ours for like in LIKE.values() for ours in like} | without_peer == set(SYSTEMS)


def test_claims_on_receiving_name_cases_that_are_measured() -> None:
    measured = {
        case_name(workers, count_max, ack_with_next=ack_with_next)
        for workers, count_max in RECEIVE
        for ack_with_next in (False, True)
    }
    claimed = {claim.case.name for claim in CLAIMS if claim.arguments == "--parts receive"}
    assert len(claimed) == 8
    assert claimed <= measured


def test_figures_are_written_with_their_units() -> None:
    assert [heading(name) for name in ("service_cpu_us_per_message", "first_ms", "per_s", "mib_per_s")] == [
        "service CPU µs/message",
        "first ms",
        "/s",
        "MiB/s",
    ]
    names = ("messages_per_s", "other_lateness p99", "ready_s", "anonymous_mib", "write_amplification")
    assert [unit(name) for name in names] == ["/s", " ms", " s", " MiB", ""]
    assert unit("service_cpu_us_per_message") == " µs/message"
    assert [number(value) for value in (0, 0.012, 0.5, 8, 9.999, 42.25, 99.99, 12_345.6)] == [
        "0",
        "0.012",
        "0.50",
        "8.00",
        "10.0",
        "42.2",
        "100",
        "12,346",
    ]
    assert cell("generator_busy_share", Spread(0.5, 0.25, 0.75, 3)) == Cell("50.0", "25.0-75.0")
    assert cell("first_ms", Spread(5, 5, 5, 3)) == Cell("5.00")


def test_ratios_are_of_settings_that_are_as_durable() -> None:
    entries: list[Entry] = [
        sent(system, 1, per_s)
        for system, per_s in ((OURS, 10), (OURS_ASYNC, 30), (PEER, 5), ("beanstalkd -f 50", 60))
    ]
    compared = grids("schedule", entries)[-1]
    assert [(row.system, row.cells) for row in compared.rows] == [
        (f"{OURS} / {PEER}", [Cell("2.00")]),
        (f"{OURS_ASYNC} / beanstalkd -f 50", [Cell("0.50")]),
    ]


def test_systems_of_a_case_stand_together_though_they_ran_in_turn() -> None:
    entries: list[Entry] = [
        sent(system, round_, 10, case=case)
        for round_ in (1, 2)
        for system in (OURS, PEER)
        for case in ("a", "b")
    ]
    [rates, _] = grids("schedule", entries)
    assert [(row.case, row.system) for row in rates.rows] == [
        ("a", OURS),
        ("a", PEER),
        ("b", OURS),
        ("b", PEER),
    ]
    assert len(by_subject(entries)) == 4


def test_a_fault_is_shown_even_if_nothing_was_measured() -> None:
    entries: list[Entry] = [
        sent(OURS, 1, 10),
        Figure("r1", "schedule", SINGLE, PEER, 1, {}, fault="refused [x]"),
    ]
    text = "\n".join(of_scenario("schedule", entries))
    assert f"Faults:\n\n- {PEER}, {SINGLE}, round 1: refused [x]\n" in text
    assert f"{PEER} (fault)" in text


def test_a_long_error_is_named_by_its_last_line() -> None:
    failed = Figure("r1", "schedule", SINGLE, OURS, 1, {}, fault="Traceback\n  File x\nRefusedError: 503\n")
    assert remarks("schedule", [failed]) == ([f"{OURS}, {SINGLE}, round 1: RefusedError: 503"], [])
    assert judge([failed])[0].faults == (f"{SINGLE}, round 1: RefusedError: 503",)


def test_a_generator_that_may_be_the_limit_is_reported() -> None:
    busy = [
        Figure("r1", "schedule", SINGLE, OURS, 1, {"generator_busy_share": share}) for share in (0.5, 0.97)
    ]
    assert remarks("schedule", busy[:1]) == ([], [])
    [said] = remarks("schedule", busy[1:])[1]
    assert said.startswith(f"{OURS}: the load generator was busy 97%")


def test_the_report_has_each_claim_beside_its_command(page: Path) -> None:
    lines = page.read_text().splitlines()
    for judged in judge(whole_page()):
        measured_peer = judged.claim.peer == PEER and judged.claim.case.name == SINGLE
        assert judged.value is not None or (judged.claim.peer and not measured_peer) or judged.claim.than_case
        [row] = [
            line
            for line in lines
            if line.startswith(f"| {judged.claim.text} | {judged.claim.target_text} |")
            and line.endswith(f"| `{judged.claim.command}` |")
        ]
        assert (" yes " in row) == (judged.verdict is Verdict.HELD)


def test_the_report_tells_the_machine_the_systems_and_the_absent(page: Path) -> None:
    text = page.read_text()
    assert "| memory | 24 GiB |" in text
    assert "| 2026-11-21T18:00:00+00:00 | abc1234+ |  |  | `python -m bench schedule` |" in text
    assert f"| {PEER} | 1.13 | -f: 0 |" in text
    assert "| RocketMQ 5 sync | `python -m bench.peers.rocketmq fetch` |" in text
    assert "1 to 2 rounds of each case and system." in text


def test_the_report_shows_pictures_that_are_there(page: Path) -> None:
    text = page.read_text()
    pictures = sorted((page.parent / "results").iterdir())
    assert {"schedule-rate.png", "schedule-latency.png", "backlog-lateness.png"} <= {
        one.name for one in pictures
    }
    for picture in pictures:
        assert picture.read_bytes().startswith(PNG)
        assert f"](results/{picture.name})" in text


def test_the_same_entries_make_the_same_report(page: Path, tmp_path: Path) -> None:
    write_report(whole_page(), tmp_path / "RESULTS.md")
    for made in (page, *(page.parent / "results").iterdir()):
        assert made.read_bytes() == (tmp_path / made.relative_to(page.parent)).read_bytes()


def test_a_report_of_nothing_says_that_nothing_was_measured(tmp_path: Path) -> None:
    write_report([], tmp_path / "RESULTS.md")
    rows = [line for line in (tmp_path / "RESULTS.md").read_text().splitlines() if "python -m bench " in line]
    assert len(rows) == len(CLAIMS)
    assert all("| not measured |" in row for row in rows)
