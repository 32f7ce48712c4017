"""The first example of a split in the log: escaped, shortened, with the names of its sides."""

import pytest

from jaxformer.data.examples import describe_example, quote


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", '""'),
        ("A dog runs.", '"A dog runs."'),
        ("Ein Hund läuft. 犬", '"Ein Hund läuft. 犬"'),
        ("\x1b[31mred\n", r'"\x1b[31mred\n"'),
        ("\u202eleft\u00a0\ufeff", r'"\u202eleft\xa0\ufeff"'),
        ("x" * 40, f'"{"x" * 40}"'),
        ("x" * 41, f'"{"x" * 40}..."'),
    ],
)
def test_texts_are_escaped_and_shortened(text, shown):
    assert quote(text) == shown


def test_sides_have_names_and_long_splits_end_alike():
    sides = [("text", "a film"), ("label", "bad")]
    assert describe_example("a.tsv", sides) == 'data: a.tsv: text "a film" -> label "bad"'
    assert describe_example("a.txt", [("", "a film")]) == 'data: a.txt: "a film"'

    found = describe_example("/folder" * 20 + "/train", sides)
    assert found.startswith("data: ...older/")
    assert found.endswith('/folder/train: text "a film" -> label "bad"')
