"""Tag filters."""

import pytest

from timerwheel.model.tags import FILTER_CHARACTERS_MAX, TAGS_MAX, IllegalFilterError, TagFilter


@pytest.mark.parametrize("text", ["*", " * "])
def test_a_star_passes_every_message_also_one_without_a_tag(text):
    tags = TagFilter.parse(text)
    assert tags.passes("A")
    assert tags.passes(None)
    assert str(tags) == "*"


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("A", "A"),
        ("A||B", "A || B"),
        (" B ||  A ", "A || B"),
        ("A||A", "A"),
        ("A|B", "A|B"),
    ],
)
def test_a_filter_passes_its_tags_only(text, tags):
    found = TagFilter.parse(text)
    assert str(found) == tags
    assert TagFilter.parse(tags) == found
    for tag in tags.split(" || "):
        assert found.passes(tag)
    assert not found.passes("Z")
    assert not found.passes(tags + "x")
    assert not found.passes("")
    assert not found.passes(None)


def test_case_counts():
    assert not TagFilter.parse("tag").passes("Tag")


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_filter_is_refused(text):
    with pytest.raises(IllegalFilterError, match="empty"):
        TagFilter.parse(text)


@pytest.mark.parametrize("text", ["A||", "||A", "||", "A || || B", "* || A", "A||*"])
def test_what_is_no_filter_is_refused(text):
    with pytest.raises(IllegalFilterError):
        TagFilter.parse(text)


@pytest.mark.parametrize("text", ["a b", "a || b c", "a\tb", "a\u00a0b"])
def test_white_space_within_a_tag_is_taken_for_a_forgotten_separator(text):
    with pytest.raises(IllegalFilterError, match=r"white space.*\|\|"):
        TagFilter.parse(text)


def test_a_filter_has_bounds():
    TagFilter.parse("||".join(f"t{n}" for n in range(TAGS_MAX)))
    with pytest.raises(IllegalFilterError, match="64"):
        TagFilter.parse("||".join(f"t{n}" for n in range(TAGS_MAX + 1)))
    TagFilter.parse("x" * FILTER_CHARACTERS_MAX)
    with pytest.raises(IllegalFilterError, match="2048"):
        TagFilter.parse("x" * (FILTER_CHARACTERS_MAX + 1))
