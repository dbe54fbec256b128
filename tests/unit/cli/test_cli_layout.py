"""Tables and facts on terminals of any width: names are whole, only free text gives way."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from timerwheel.cli.layout import facts, lay_out

ID = "0000000000000040e1d2f855"
NAME = st.text("abcdefgh-", min_size=1, max_size=40)
BODY = st.text("ab 漢é", max_size=200)
ROWS = st.lists(st.tuples(NAME, BODY, st.integers(0, 10**9).map("{:,}".format)), min_size=1, max_size=5)
COLUMNS = ("name", "~body", "#count")


@given(ROWS, st.integers(20, 130))
def test_a_table_fits_its_terminal_and_holds_every_name_whole(rows, width):
    made = lay_out(COLUMNS, rows, width)
    text = "\n".join(made.lines)
    assert all(name in text and count in text for name, _, count in rows)
    if made.heading is not None:
        assert all(cell_len(line) <= width for line in [made.heading, *made.lines])
        assert len(made.lines) == len(rows)


@given(ROWS)
def test_a_table_in_a_pipe_holds_everything_on_a_line_for_each_row(rows):
    made = lay_out(COLUMNS, rows, None)
    assert len(made.lines) == len(rows)
    for line, (name, body, count) in zip(made.lines, rows, strict=True):
        assert line.startswith(name)
        assert body in line
        assert line.endswith(count)


def test_free_text_is_cut_with_an_ellipsis_and_the_wide_form_cuts_nothing():
    body = "a body of many words " * 10
    row = ("orders", ID, body)
    [line] = lay_out(("topic", "id", "~body"), [row], 80).lines
    assert (len(line), line[-1]) == (80, "…")
    [line] = lay_out(("topic", "id", "~body"), [row], 80, wide=True).lines
    assert body.rstrip() in line


def test_columns_of_the_wide_form_are_left_out_of_the_others():
    columns = ("name", "+#count")
    assert lay_out(columns, [("a", "1")], 80).lines == ["a"]
    assert lay_out(columns, [("a", "1")], None).lines == ["a"]
    assert lay_out(columns, [("a", "1")], 80, wide=True).heading == "name  count"


def test_names_that_are_wider_than_the_terminal_make_a_block_for_each_row():
    made = lay_out(("id", "topic", "#lag"), [(ID, "t" * 127, "3"), (ID, "u", "4")], 80)
    assert made.heading is None
    assert made.lines[:4] == [f"id     {ID}", "topic  " + "t" * 127, "lag    3", ""]


def test_a_sentence_continues_under_its_beginning():
    made = lay_out(("#offset", "=what"), [("7", "one two three four five six")], 32)
    assert made.lines == ["     7  one two three four five", "        six"]


def test_a_table_without_rows_is_its_heading():
    assert lay_out(("name", "#count"), [], 80) == ("name  count", [])


def test_long_facts_continue_under_their_beginning_and_a_secret_stays_whole():
    secret = "whsec_" + "x" * 90
    lines = facts([("url", "word " * 30), ("secret", f"{secret} (shown only now)")], 60)
    assert {name for name, _ in lines} == {"url     ", "secret  ", "        "}
    assert any(value == secret for _, value in lines)
    assert all(len(name + value) <= 60 for name, value in lines if secret not in value)
    assert facts([("url", "word " * 30)], None) == [("url  ", "word " * 30)]
