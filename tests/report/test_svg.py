import xml.etree.ElementTree as ElementTree

import pytest

from resources.report.svg import WIDTH, Value, distribution, logarithmic, matrix
from resources.report.view import Mark, measure, visible

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return [e.text for e in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_values_stand_in_their_order_on_a_logarithmic_axis_and_zero_at_its_left():
    svg = logarithmic(
        [Value("none", 0, Mark.QUIET), Value("some", 10, Mark.GOOD), Value("more", 1000, Mark.GOOD)],
        ((1.0, "noise"),),
        unit="floors",
    )
    none, some, more = (float(c.get("cx")) for c in ElementTree.fromstring(svg).iter(f"{SVG}circle"))
    assert none < some < more
    [noise] = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}line") if e.get("stroke-dasharray")]
    assert none < float(noise.get("x1")) < some
    assert {"none", "some", "more", "noise", "floors"} <= set(texts(svg))


def test_a_value_with_a_long_text_keeps_it_inside_the_picture():
    text = "65,500, 1,234,567 not finite"
    svg = logarithmic([Value("layers.1", 65500, Mark.BAD, text)], ((65504, "end of float16"),), unit="magnitude")
    [beside] = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.text == text]
    assert float(beside.get("x")) + 7 * len(text) < WIDTH


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [5.0] * 40, [1e-7, 2e-7, 9e-7], list(range(200))])
def test_a_distribution_counts_every_value_once(values):
    svg = distribution(values, unit="length")
    bars = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}rect") if e.get("rx") == "2"]
    counts = [int(t) for t in texts(svg) if t.isdecimal()][: len(bars)]
    assert sum(counts) == len(values)
    assert all(float(b.get("width")) > 0 for b in bars)


def test_a_matrix_has_a_cell_for_each_row_and_column_and_escapes_its_texts():
    svg = matrix(
        ("a<b", "c"), ("x", "y"), [[("1", Mark.GOOD), ("0", Mark.QUIET)], [("0", Mark.QUIET), ("9", Mark.BAD)]]
    )
    assert [t for t in texts(svg) if t.isdecimal()] == ["1", "0", "0", "9"]
    assert "a<b" in texts(svg)


@pytest.mark.parametrize(
    ("value", "says"), [(0, "0"), (0.000123456, "0.000123"), (12.34, "12.3"), (734567.0, "735,000"), (3e12, "3e+12")]
)
def test_a_measure_is_readable(value, says):
    assert measure(value) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [(" is", "·is"), ("a\n  b", "a⏎··b"), ("\t", "⇥"), ("\x07", "\\x07"), ("", "(nothing)"), ("ü", "ü")],
)
def test_what_would_not_be_seen_is_made_visible(text, says):
    assert visible(text) == says
