"""The notation: what is read, what is written, and what is said of a line that cannot be read."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import SpecError
from outlast.specs import (
    Layout,
    Parallel,
    Repeat,
    Serial,
    Spec,
    parse,
    parse_layout,
    parse_value,
    write_value,
)

# ---- anything that can be said is read back as it was ------------------------------------------

names = st.text(string.ascii_letters + "_", min_size=1, max_size=8)
plain_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    names,
    st.text(max_size=12),
    st.text("\"'\\ ()[],=>|@#\nx1", max_size=8),
)


def specs_of(values: st.SearchStrategy, least: int = 0) -> st.SearchStrategy[Spec]:
    return st.builds(
        lambda name, args, kwargs: Spec(name, tuple(args), tuple(kwargs.items())),
        names,
        st.lists(values, min_size=least, max_size=3),
        st.dictionaries(names, values, max_size=3),
    )


# a spec without arguments is a word where a value stands, so as a value it has one at least
values = st.recursive(
    plain_values,
    lambda inner: st.lists(inner, max_size=3) | specs_of(inner, least=1),
    max_leaves=8,
)
nodes = st.recursive(
    specs_of(plain_values),
    lambda inner: st.one_of(
        st.builds(Repeat, st.integers(1, 99), inner),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(Serial),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(Parallel),
    ),
    max_leaves=6,
)
scales = st.none() | st.floats(1e-15, 1e15)
layouts = st.one_of(
    st.builds(Layout, nodes),
    st.builds(Layout, nodes, st.integers(1, 10_000), scales),
)


def same(one: object, two: object) -> bool:
    """Equal, with 1, 1.0 and true told apart, and 0.0 from -0.0."""
    return repr(one) == repr(two)


@given(values)
def test_value_survives_writing_and_parsing(value):
    assert same(parse_value(write_value(value)), value)


@given(specs_of(values))
def test_spec_survives_writing_and_parsing(spec):
    again = parse(str(spec))
    assert again == spec
    assert same(again, spec)
    assert str(again) == str(spec)


@given(layouts)
def test_layout_survives_writing_and_parsing(layout):
    again = parse_layout(str(layout))
    assert again == layout
    assert str(again) == str(layout)


# ---- what single lines mean --------------------------------------------------------------------

A, B, C = Spec("a"), Spec("b"), Spec("c")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("a | b > c", Serial((Parallel((A, B)), C))),
        ("a > b | c", Serial((A, Parallel((B, C))))),
        ("a | (b > c)", Parallel((A, Serial((B, C))))),
        ("(a > b) | c", Parallel((Serial((A, B)), C))),
        ("(a)", A),
        ("2 x (a > b)", Repeat(2, Serial((A, B)))),
        ("2x(a>b)", Repeat(2, Serial((A, B)))),
        ("2 × a", Repeat(2, A)),
        ("2 x a > b", Serial((Repeat(2, A), B))),
        ("2 x a | b", Parallel((Repeat(2, A), B))),
        ("2 x 3 x a", Repeat(2, Repeat(3, A))),
        ("2 x x", Repeat(2, Spec("x"))),
    ],
)
def test_precedence_of_layout_operators(line, meant):
    assert parse_layout(line) == Layout(meant)


@pytest.mark.parametrize(
    ("line", "width", "embedding", "head"),
    [
        ("lstm", None, None, None),
        ("lstm @ 64", 64, None, None),
        ("2 x (lstm > mlp)@64", 64, None, None),
        ("lstm @ 64, embedding=1", 64, 1.0, None),
        ("lstm @ 64, embedding=0.02", 64, 0.02, None),
        ("lstm @ 64, head=10", 64, None, 10),
        ("lstm @ 64, head=10, embedding=2", 64, 2.0, 10),
        ("lstm @ 64, residual=normalised, embedding=0.02, norm=rms", 64, 0.02, None),
        ("lstm @ 64, embedding=uniform(1)", 64, Spec("uniform", (1.0,)), None),
    ],
)
def test_width_and_options_of_a_layout(line, width, embedding, head):
    read = parse_layout(line)
    assert (read.width, read.embedding, read.head) == (width, embedding, head)
    assert parse_layout(str(read)) == read


def test_untidy_layout_is_written_in_canonical_form():
    untidy = "2x( (lstm)|attention( rope ,heads = 2)>mlp )@128"
    assert str(parse_layout(untidy)) == "2 x (lstm | attention(rope, heads=2) > mlp) @ 128"


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("dat", Spec("dat")),
        ("dat()", Spec("dat")),
        ("ema(0.9,)", Spec("ema", (0.9,))),
        ("f(1, -2, +3, .5, 1e3)", Spec("f", (1, -2, 3, 0.5, 1000.0))),
        ("f(true, false, none)", Spec("f", (True, False, None))),
        ("f(from=8, in=9)", Spec("f", (), (("from", 8), ("in", 9)))),
        ("f([])", Spec("f", ([],))),
        ("f([1, [a, 2.5],])", Spec("f", ([1, ["a", 2.5]],))),
        ("f(g(1), h)", Spec("f", (Spec("g", (1,)), "h"))),
        ("f(g())", Spec("f", ("g",))),
        ("f(none(1))", Spec("f", (Spec("none", (1,)),))),
    ],
)
def test_arguments_of_a_spec(line, meant):
    assert same(parse(line), meant)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ("none", '"none"'),
        ("1", '"1"'),
        ('say "hi"', r'"say \"hi\""'),
        ("it's", '"it\'s"'),
        (r"C:\runs", r'"C:\\runs"'),
        ("a, b) > c", '"a, b) > c"'),
    ],
)
def test_text_is_quoted_only_if_needed(text, written):
    assert write_value(text) == written
    assert parse_value(written) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [("'single'", "single"), ("'it\\'s'", "it's"), ('"C:\\runs"', "C:\\runs"), ("'a\"b'", 'a"b')],
)
def test_single_and_double_quotes_are_read(written, text):
    assert parse_value(written) == text


@pytest.mark.parametrize(
    ("number", "written"),
    [(1, "1"), (1.0, "1.0"), (0.1, "0.1"), (1e-5, "1e-05"), (8 / 3, "2.6666666666666665")],
)
def test_float_keeps_its_point_when_written(number, written):
    assert write_value(number) == written


# ---- what cannot be read -----------------------------------------------------------------------

# the line, what the error says, and the character that the caret stands under ("" for the end)
BROKEN_SPECS = [
    ("", "expected a name, found the end", ""),
    ("3", "expected a name, found '3'", "3"),
    ("f(1", "expected ',' or ')', found the end", ""),
    ("f(1 2)", "expected ',' or ')', found '2'", "2"),
    ("f([1 2])", "expected ',' or ']', found '2'", "2"),
    ("f(,)", "expected a value, found ','", ","),
    ("f(a=)", "expected a value, found ')'", ")"),
    ("f(a=1, a=2)", "'a' is given twice", "a=2"),
    ("f(a=1, 2)", "arguments without a name come first", "2)"),
    ("f) ", "expected the end, found ')'", ")"),
    ("f g", "expected the end, found 'g'", "g"),
    ("f(1, $)", "did not expect '$'", "$"),
    ("f(x-y)", "did not expect '-'", "-"),
    (
        "f(a=/tmp)",
        """did not expect '/'; text that is no word needs quotes, such as folder="/""",
        "/",
    ),
    ("f(1) / 2", "did not expect '/'", "/"),
    ('f("open)', "this quote is not closed", '"'),
    ("f(1e999)", "expected a number that is not too large, found '1e999'", "1e999"),
    ("f(1_000)", "expected ',' or ')', found '_000'", "_000"),
    ("f(٣)", "did not expect '٣'", "٣"),
]
BROKEN_LAYOUTS = [
    ("", "expected a name, found the end", ""),
    ("a >", "expected a name, found the end", ""),
    ("a > > b", "expected a name, found '>'", "> b"),
    ("a || b", "expected a name, found '|'", "| b"),
    ("(a > b", "expected ')', found the end", ""),
    ("a > b)", "expected the end, found ')'", ")"),
    ("4 (a > b)", "expected 'x', as in 4 x (lstm > mlp), found '('", "("),
    ("4", "expected 'x', as in 4 x (lstm > mlp), found the end", ""),
    ("a @", "expected a width, such as @ 128, found the end", ""),
    ("a @ wide", "expected a width, such as @ 128, found 'wide'", "wide"),
    ("a @ 64 > b", "expected the end, found '>'", "> b"),
    ("a, head=2", "expected a width before any option, such as @ 128, found ','", ", head"),
    ("a @ 64, depth=2", "expected embedding=..., head=..., norm=..., residual=...", "depth"),
    ("a @ 64, head=2, head=3", "each at most once", "head=3"),
]


BROKEN = [(parse, *row) for row in BROKEN_SPECS] + [(parse_layout, *row) for row in BROKEN_LAYOUTS]


@pytest.mark.parametrize(("read", "line", "says", "at"), BROKEN)
def test_unreadable_line_is_refused_with_a_pointer(read, line, says, at):
    with pytest.raises(SpecError) as caught:
        read(line)
    message, shown, caret = str(caught.value).split("\n")
    assert repr(line) in message
    assert says in message
    assert shown == f"    {line}"
    assert caret.index("^") - 4 == (line.index(at) if at else len(line))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0 x (a)", "repeat=0: expected a whole number >= 1"),
        ("1.5 x (a)", "repeat=1.5: expected a whole number >= 1"),
        ("a @ 0", "width=0: expected a whole number >= 1"),
        ("a @ 64.5", "width=64.5: expected a whole number >= 1"),
        ("a @ 64, embedding=0", r"embedding=0: expected a scale > 0"),
        ("a @ 64, embedding=normal(1)", r"embedding=normal\(1\): expected a scale > 0, or uniform"),
        ("a @ 64, embedding=uniform(-1)", r"embedding=uniform\(-1\): expected a scale > 0"),
        ("a @ 64, norm=batch", r"norm=batch: expected layer \| rms"),
        ("a @ 64, residual=none", r"residual=none: expected plain \| normalised"),
        ("a @ 64, head=0", r"head=0: expected a number of outputs >= 1"),
        ("a @ 64, head=2.5", r"head=2.5: expected a number of outputs >= 1"),
        ("1000000000001 x a", r"repeat=1000000000001: expected a whole number up to 1,000,000,000"),
        ("a @ 1000000000001", r"width=1000000000001: expected a whole number up to 1,000,000,000"),
        ("a @ 8, head=1000000000001", r"head=1000000000001: expected a whole number up to 1,000,0"),
        ("a @ 8, embedding=1e31", r"embedding=1e\+31: expected a number of size 1e-15 to 1e\+15"),
        ("a @ 8, embedding=uniform(1e-99)", r"embedding=1e-99: expected a number of size 1e-15"),
        ("a @ 8, dropout=1e-99", r"dropout=1e-99: expected a number of size 1e-15 to 1e\+15, or 0"),
    ],
)
def test_layout_value_out_of_range_is_refused(line, says):
    with pytest.raises(SpecError, match=says):
        parse_layout(line)


@pytest.mark.parametrize("digits", [51, 500, 5000, 100_000])
def test_number_of_hundreds_of_digits_is_refused_in_few_words(digits):
    number = "9" * digits
    for read, line in (
        (parse, f"f({number})"),
        (parse, f"f(a=-{number})"),
        (parse_value, f"0.{number}"),
        (parse_layout, f"a @ {number}"),
        (parse_layout, f"{number} x a"),
    ):
        with pytest.raises(SpecError, match=r"expected a number of at most 50 digits") as caught:
            read(line)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("read", "line"),
    [
        (parse_layout, "(" * 1000 + "a" + ")" * 1000),
        (parse_layout, "(" * 100_000),
        (parse_layout, "2 x " * 1000 + "a"),
        (parse_layout, "2 x (" * 1000 + "a" + ")" * 1000),
        (parse, "f(" * 1000 + ")" * 1000),
        (parse, "f(a=" * 1000 + "1" + ")" * 1000),
        (parse_value, "[" * 1000 + "]" * 1000),
        (parse_value, "f([" * 1000),
    ],
)
def test_line_with_a_thousand_brackets_is_refused(read, line):
    with pytest.raises(SpecError, match=r"expected at most 50 levels of brackets") as caught:
        read(line)
    assert len(str(caught.value)) < 1000


def test_line_with_fifty_levels_of_brackets_is_read():
    assert parse_layout("(" * 50 + "a" + ")" * 50) == Layout(A)
    assert parse_layout("2 x " * 50 + "a").node.times == 2


@given(st.text("ab(),[]=>|@x 12.\"'\\$", max_size=12))
def test_any_text_is_parsed_or_refused(line):
    for read, write in ((parse, str), (parse_value, write_value), (parse_layout, str)):
        try:
            parsed = read(line)
        except SpecError:
            continue
        assert same(read(write(parsed)), parsed)


def test_parsing_a_parsed_object_returns_it():
    spec, layout = parse("f(1)"), parse_layout("a > b")
    assert parse(spec) is spec
    assert parse_layout(layout) is layout
