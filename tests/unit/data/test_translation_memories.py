"""TMX, XLIFF and CSV: pairs, places, notes, and messages about faults."""

import gzip
import tracemalloc

import pytest

from jaxformer.config import DataConfig
from jaxformer.data.corpus import VerifiedCorpus, open_corpus
from jaxformer.errors import UserError

# Every inline element of TMX 1.4; <hi> and <sub> of text are text, what codes hold is not.
TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4">
  <header srclang="en" creationtool="x"><note>no <seg>text</seg></note></header>
  <body>
    <tu tuid="1">
      <prop type="x">no text</prop>
      <tuv xml:lang="de-AT"><seg>Servus.</seg></tuv>
      <tuv xml:lang="EN_us"><seg>Hello, <bpt i="1">&lt;b&gt;</bpt><hi>big</hi><ept
        i="1">&lt;/b&gt;</ept> world<ph>&lt;img alt="<sub>no</sub>"/></ph>.</seg></tuv>
      <tuv xml:lang="de"><seg>Hallo, <it pos="begin">&lt;i&gt;</it>große Welt &amp; €.</seg></tuv>
    </tu>
    <tu><tuv xml:lang="en"><seg>Only English.</seg></tuv></tu>
    <tu>
      <tuv lang="en"><seg>Zwei<!-- a comment -->!</seg><seg>not this</seg></tuv>
      <tuv lang="de-CH"><seg>Two<ut>x</ut>!</seg></tuv>
    </tu>
  </body>
</tmx>
"""
UTF8 = TMX.format(encoding="UTF-8")
TMX_PAIRS = [("Hello, big world.", "Hallo, große Welt & €."), ("Zwei!", "Two!")]

XLIFF_1 = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file source-language="en-US" target-language="de" original="a" datatype="plaintext"><body>
    <group id="g"><trans-unit id="1">
      <source>Press <g id="1">OK</g><x id="2"/>.</source>
      <seg-source><mrk mtype="seg">Press OK.</mrk></seg-source>
      <target>Drücke <g id="1">OK</g><ph id="3">code</ph>.</target>
      <alt-trans><source>Other</source><target>Andere</target></alt-trans>
    </trans-unit></group>
    <trans-unit id="2"><source>Not translated yet</source></trans-unit>
  </body></file>
  <file source-language="fr" target-language="de" original="b" datatype="plaintext"><body>
    <trans-unit id="3"><source>Oui.</source><target>Ja.</target></trans-unit>
  </body></file>
</xliff>
"""
XLIFF_2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en"
    trgLang="de"><file id="f"><unit id="1">
  <segment><source>Press <pc id="1">OK</pc><ph id="2"/>.</source>
    <target>Drücke <pc id="1">OK</pc>.</target></segment>
  <ignorable><source> </source></ignorable>
</unit></file></xliff>
"""
XLIFF_PAIRS = [("Press OK.", "Drücke OK.")]

CSV = """id;English;German;note
1;"One; two";"Eins; zwei";
2;"A ""quoted""
line";Zeile;x
3;;;
"""
CSV_PAIRS = [("One; two", "Eins; zwei"), ('A "quoted"\nline', "Zeile"), ("", "")]


def config_of(path, corpus, **fields):
    return DataConfig(corpus=corpus, train=str(path), valid="5%", **fields)


def read(path, corpus, **fields):
    config = config_of(path, corpus, **fields)
    return list(open_corpus(config).pairs(config.train))


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-8-SIG", "UTF-16", "ISO-8859-15"])
def test_text_of_tmx_in_every_encoding_that_it_names(encoding, tmp_path):
    path = tmp_path / "memory.tmx"
    declared = encoding.removesuffix("-SIG")
    path.write_bytes(TMX.format(encoding=declared).encode(encoding))
    assert read(path, "tmx") == TMX_PAIRS

    turned = [(target, source) for source, target in TMX_PAIRS]
    assert read(path, "tmx", source_language="de", target_language="en") == turned
    assert read(path, "tmx", target_language="de-AT") == [("Hello, big world.", "Servus.")]


@pytest.mark.parametrize("text", [XLIFF_1, XLIFF_2], ids=["1.2", "2.0"])
def test_text_of_xliff(text, tmp_path):
    path = tmp_path / "file.xlf"
    path.write_text(text, encoding="utf-8")
    assert read(path, "xliff") == XLIFF_PAIRS


def test_rows_of_csv_have_columns_with_names(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(CSV, encoding="utf-8-sig")
    assert read(path, "csv", columns="English,German") == CSV_PAIRS

    named = CSV.replace("English", "de").replace("German", "en").replace(";", "\t")
    path.write_text(named)
    turned = [(target, source) for source, target in CSV_PAIRS]
    assert read(path, "csv") == [tuple(side.replace(";", "\t") for side in pair) for pair in turned]


def test_columns_of_jsonl_have_names_too(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"English": "Yes.", "German": "Ja.", "en": "no"}\n')
    assert read(path, "jsonl", columns="English,German") == [("Yes.", "Ja.")]


def test_places_are_units_and_lines_and_what_is_left_out_is_said(tmp_path):
    path = tmp_path / "memory.tmx.gz"
    path.write_bytes(gzip.compress(UTF8.encode()))
    config = config_of(path, "tmx")
    corpus = VerifiedCorpus(open_corpus(config))
    assert list(corpus.pairs(config.train)) == TMX_PAIRS
    assert corpus.place(config.train, 1, 0) == f"{path}:unit 3"
    assert corpus.notes(config.train) == [f"{path}: 1 units without both languages are left out"]

    path = tmp_path / "pairs.csv"
    path.write_text(CSV)
    config = config_of(path, "csv", columns="English,German")
    corpus = VerifiedCorpus(open_corpus(config))
    places = [corpus.place(config.train, number, 0) for number in range(3)]
    assert places == [f"{path}:{line}" for line in (2, 4, 5)]


def test_a_large_memory_is_read_unit_by_unit(tmp_path):
    path = tmp_path / "memory.tmx"
    unit = "<tu>{}</tu>\n".format(
        "".join(f'<tuv xml:lang="{name}"><seg>{"x" * 200}</seg></tuv>' for name in ("en", "de"))
    )
    path.write_text(f"<tmx><body>{unit * 5000}</body></tmx>")  # 2.4 MB

    tracemalloc.start()
    count = sum(1 for _ in open_corpus(config_of(path, "tmx")).pairs(str(path)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 5000
    assert peak < 1e6


BOMB = '<!DOCTYPE a [<!ENTITY a "{}">{}]><tmx><body><tu>&z;</tu></body></tmx>'.format(
    "x" * 1000,
    "".join(
        f'<!ENTITY {name} "{f"&{before};" * 100}">'
        for before, name in zip("abcdefghi", "bcdefghiz", strict=True)
    ),
)
OUTSIDE = '<!DOCTYPE a [<!ENTITY a SYSTEM "/etc/passwd">]><tmx><body><tu>&a;</tu></body></tmx>'
DEEP = f"<tmx><body>{'<tu>' * 100_000}"


@pytest.mark.parametrize(
    ("corpus", "content", "message"),
    [
        ("tmx", UTF8[:700], r"a\.tmx: expected a whole XML file: unclosed token: line \d+"),
        ("tmx", "Yes.\tJa.\n", r"a\.tmx: expected a whole XML file: syntax error: line 1"),
        ("tmx", "", r"a\.tmx: expected a whole XML file: no element found"),
        ("tmx", XLIFF_1, "expected <tmx> as the first element, got <xliff>; name the format"),
        ("xliff", TMX.format(encoding="x"), "expected a whole XML file: unknown encoding"),
        ("tmx", BOMB, "expected a whole XML file: limit on input amplification factor"),
        ("tmx", OUTSIDE, "expected a whole XML file: undefined entity &a;"),
        ("tmx", DEEP, "expected a whole XML file: no element found"),
        ("tmx", "<tmx/>", "units in en and de, got 0 units in no language; give --config.data.so"),
        ("csv", CSV, "expected a row of names, with en and de among them: got 'id;English;Ger"),
        ("csv", "en,de\nYes.,Ja.,x\n", "csv:2: expected 2 values, as in the first row: got 3; put"),
        ("csv", 'en,de\n"Yes" x,Ja.\n', "csv:2: expected comma-separated values: ',' expected"),
        ("csv", "", "a.csv:1: expected a row of names, .*: got ''; give --config.data.columns="),
        ("csv", 'en,de\n"Yes', "csv:2: expected comma-separated values: unexpected end of data"),
    ],
)
def test_faults_are_said_in_a_line(corpus, content, message, tmp_path):
    path = tmp_path / f"a.{corpus}"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        read(path, corpus)
    assert "\n" not in str(error.value)


def test_other_languages_are_named(tmp_path):
    path = tmp_path / "a.tmx"
    path.write_text(UTF8)
    with pytest.raises(UserError, match="got 3 units in EN_us, de, de-AT, de-CH, en; give"):
        read(path, "tmx", target_language="fr")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"corpus": "tmx", "columns": "a,b"}, "needs data.corpus=parquet or jsonl or csv: got tmx"),
        ({"corpus": "csv", "columns": "a"}, "names of the columns .* with a comma between: got 'a"),
    ],
)
def test_columns_are_two_and_of_files_that_have_them(fields, message):
    with pytest.raises(UserError, match=message):
        DataConfig(**fields)
