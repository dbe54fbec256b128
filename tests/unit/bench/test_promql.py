"""The reader of queries that the tests of dashboard and alerts rest on: it passes over nothing."""

import pytest

from tests.harness.promql import Query, Selector


def test_metrics_matchers_and_ranges_are_found_wherever_they_stand():
    query = Query(
        'histogram_quantile(0.9, sum by (instance, le) (rate(a_bucket{x="1", y!~"b|c"}[5m])))'
        " > 2 * on (instance) group_left (version) b offset 15m and c{} or time() - d"
    )
    assert query.selectors == [
        Selector("a_bucket", [("x", "=", "1"), ("y", "!~", "b|c")], ranged=True),
        Selector("b", [], ranged=False),
        Selector("c", [], ranged=False),
        Selector("d", [], ranged=False),
    ]
    assert query.grouped == ["instance", "le", "instance", "version"]


def test_labels_are_those_of_the_metrics_unless_they_are_grouped_or_made():
    assert Query("topk(3, a)").labels is None
    assert Query('sum by (b) (label_replace(a, "b", "none", "b", "^$"))').labels >= {"b"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no metric"),
        ("1 + 2", "no metric"),
        ("time()", "no metric"),
        ("rote(a[5m])", "no known function: rote"),
        ("sum(rate(a[5m])", "a bracket is open"),
        ("a)", "not opened"),
        ("rate(a)", "a range is missing"),
        ("a[5m]", "one too many"),
        ("sum(a[5m])", "one too many"),
        ("rate(sum(a)[5m])", "stands alone"),
        ("rate(a[5 minutes])", "not understood"),
        ('a{b="c"', "is not in list"),
        ('a{b="c" d}', "matchers are not understood"),
        ("sum by a (b)", r"\( is missing"),
        ("rate > 1", "without arguments"),
        ("a ? b", "not understood"),
        ("a offset b", "offset by what"),
        ("a > 15m", "stands alone"),
    ],
)
def test_what_is_not_understood_is_an_error(text, why):
    with pytest.raises(ValueError, match=why):
        Query(text)
