"""How long a node leads for certain, by what the coordinator has confirmed."""

from timerwheel.kafka.tenure import ASK_MS, MARGIN_MS, NEVER, SESSION_MS, Tenure


def test_it_lasts_for_a_session_less_a_margin_from_when_it_was_asked_for() -> None:
    tenure = Tenure()
    assert tenure.until_ms == NEVER
    tenure.begin(1_000)
    assert tenure.should_ask(1_000)
    assert tenure.until_ms == NEVER  # nobody has answered yet
    tenure.confirmed(1_000)
    assert tenure.until_ms == 1_000 + SESSION_MS - MARGIN_MS


def test_it_is_asked_for_once_in_a_while_and_only_by_who_has_the_partition() -> None:
    tenure = Tenure()
    assert not tenure.should_ask(0)
    tenure.begin(0)
    assert tenure.should_ask(0)
    assert not tenure.should_ask(ASK_MS - 1)
    assert tenure.should_ask(ASK_MS)
    tenure.end()
    assert not tenure.should_ask(10 * ASK_MS)


def test_an_answer_from_before_the_partition_was_lost_counts_for_nothing() -> None:
    tenure = Tenure()
    tenure.begin(0)
    tenure.end()
    tenure.confirmed(0)
    assert tenure.until_ms == NEVER
    tenure.begin(9_000)
    tenure.confirmed(8_999)
    assert tenure.until_ms == NEVER


def test_answers_that_come_out_of_order_do_not_shorten_it() -> None:
    tenure = Tenure()
    tenure.begin(0)
    tenure.confirmed(2_000)
    tenure.confirmed(1_000)
    assert tenure.until_ms == 2_000 + SESSION_MS - MARGIN_MS


def test_it_ends_with_the_partition() -> None:
    tenure = Tenure()
    tenure.begin(0)
    tenure.confirmed(0)
    tenure.end()
    assert tenure.until_ms == NEVER
