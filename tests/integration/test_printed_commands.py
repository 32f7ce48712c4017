"""Every command that a page prints runs, in order, in a folder with small stand-ins for its files.

The tables below shorten commands by further options, and name the commands that cannot run here,
with a reason. A new command runs as it is printed, unless a table has it.
"""

import gzip
import json
import pathlib
import re
import shutil
import string
from collections.abc import Callable, Iterator

import jax
import numpy as np
import PIL.Image
import pytest
from scipy.io import wavfile

from jaxformer import pretrained
from jaxformer.data.glyphs import known_glyphs
from jaxformer.data.numerals import spell_english, spell_german
from jaxformer.interop.huggingface.importer import import_huggingface

from .. import printed
from ..fixtures.waves import RATE, random_wave
from ..printed import PROJECT
from ..runs import write_pairs
from . import pages
from .families import write_model
from .shell import Shell

pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning"),
]

FIXTURES = PROJECT / "tests" / "fixtures"
# For contributors, and commands of other pages in another language.
OTHERS = {"CONTRIBUTING.md"}
WITH_COMMANDS = [
    page
    for page in printed.PAGES
    if any(printed.shell_commands(page))
    and printed.name(page) not in OTHERS
    and not page.name.endswith(".zh-CN.md")
]

NETWORK = "needs a network"
ACCELERATOR = "needs an accelerator, or several machines"
HOURS = "takes hours"
CLAIM = "takes minutes; tests/unit/paper/test_claims.py tests its parts"
PEER = "compares with a program that has an environment of its own, for hours"
SYNTHESIZER = "needs a synthesizer, which is under the GPL"
FONT = "needs a font with Chinese letters"
DEVICES = "simulates devices, in a process of its own; test_cli_doctor.py runs another"
LEARNED = "the next command needs a model that has learned, for which another stands in"
SERVER = "runs until it is stopped, or asks such a server; test_cli_serve.py runs both"
# Commands that do not run here, by a pattern that begins there. test_pages.py parses them.
NOT_RUN = {
    r"make (demo|test)\b": NETWORK,
    r"(uv )?pip install ": NETWORK,
    r"uv (tool install|venv) ": NETWORK,
    r"python3 -m venv ": NETWORK,
    r"jaxformer data \w": NETWORK,
    r"jaxformer train numerals --workdir runs/teacher": LEARNED,
    r"python -c .*download_and_prepare": NETWORK,
    r"sacrebleu -t wmt14/full ": NETWORK,
    r"jaxformer train base --workdir /content/": NETWORK,  # a drive
    r"jaxformer train base --workdir /shared/": ACCELERATOR,
    r"jaxformer train big .*--config\.mesh\.fsdp=4": ACCELERATOR,
    r"jaxformer train base .*--config\.mesh\.pipe=2": ACCELERATOR,
    r"jaxformer doctor .*--devices 8": DEVICES,
    r"python benchmarks/tpu\.py ": ACCELERATOR,
    r"python benchmarks/(long_input|sample_efficiency)\.py ": HOURS,
    r"python benchmarks/.* --peers? ": PEER,
    r"python benchmarks/speak_numerals\.py ": SYNTHESIZER,
    r"jaxformer attention --workdir runs/numerals-zh ": FONT,
    r"python -m jaxformer\.paper\.claims (?!bpe)\w": CLAIM,
    r"(jaxformer serve|curl)\b": SERVER,
    r"jaxformer .*\bhf://": NETWORK,
    r"jaxformer push ": NETWORK,
}

_WIDTH = "model.d_model=32 model.d_ff=64 model.num_heads=4 model.num_layers=1"
# Firefox's engine multiplies blocks of 64.
_STUDENT = "model.d_model=64 model.d_ff=64 model.num_layers=1 model.num_decoder_layers=1"
_PACKED = "data.batching=packing data.tokens_per_batch=256 data.max_length=64"
_WORDS = "data.corpus=text data.train=data/tatoeba-en-de/train data.valid=data/tatoeba-en-de/valid"
_PAIRS = f"{_WIDTH} {_PACKED} model.max_length=128"
_BERT = (
    "model.d_model=16 model.d_ff=24 model.num_heads=2 model.num_layers=2 model.max_length=24 "
    "data.max_length=24 data.tokens_per_batch=128 training.best_metric=loss"
)
_SPOKEN = (
    "model.d_model=16 model.d_ff=16 model.num_layers=1 data.max_seconds=1.0 "
    "data.seconds_per_batch=4.0"
)
# Smaller models by config: these fields come before the fields of a page, which prevail.
SIZES = {
    "base:small": f"{_PAIRS} model.compute_dtype=float32",
    "fine_tune": "training.init_from=runs/numerals data.tokens_per_batch=256 data.max_length=64",
    "student:numerals": f"{_STUDENT} {_PACKED} {_WORDS} data.train=data/tatoeba-en-de/valid",
    "numerals": f"{_PAIRS} {_WORDS} model.vocab_size=300",
    "small": f"{_PAIRS} {_WORDS} model.vocab_size=300",  # the tutorial's
    "numerals:zh": f"{_WIDTH} {_PACKED} model.max_length=128 model.vocab_size=300",
    "numerals:masked": "model.d_model=32 model.d_ff=64 model.num_layers=1",
    "long_reviews": "model.d_model=16 model.d_ff=16 model.vocab_size=300",
    "long_reviews:whole": "model.d_model=16 model.d_ff=16 model.vocab_size=300",
    "gpt:small": _WIDTH,
    "shakespeare": f"{_WIDTH} model.max_length=32 data.length=32 data.rows=8",
    "sst2": f"{_WIDTH} model.vocab_size=300 data.tokens_per_batch=256",
    "sst2:minilm": "model.d_model=16 model.d_ff=24 model.num_heads=2 model.num_layers=2 "
    "model.max_length=24 data.max_length=24",
    "bert": _BERT,
    "bert:choice": f"{_BERT} data.tokens_per_batch=512",
    "whisper": "model.d_model=16 model.d_ff=24 model.num_heads=4 model.num_layers=2 "
    "model.num_decoder_layers=2 "
    "model.max_source_length=50 model.max_length=40 data.max_length=40 data.max_seconds=1.0 "
    "data.seconds_per_batch=8.0",
    "whisper:numerals": "model.d_model=16 model.d_ff=16 model.num_layers=1 "
    "model.max_source_length=50 data.max_seconds=1.0 data.seconds_per_batch=8.0",
    "digits": "model.d_model=16 model.d_ff=16 model.num_layers=1 data.rows=8",
    "glyphs": "model.d_model=16 model.d_ff=16 model.num_layers=1 model.vision_d_model=16 "
    "model.vision_d_ff=16 model.vision_num_layers=1 data.rows=8",
    "flamingo:text": "model.d_model=16 model.d_ff=16 model.num_layers=1 data.rows=2",
    "flamingo": "model.d_model=16 model.d_ff=16 model.num_layers=1 data.rows=2 "
    "model.vision_d_model=16 model.vision_d_ff=16 model.vision_num_layers=1 "
    "model.resampler_d_ff=16 model.resampler_num_layers=1",
    "digits:convit": "model.d_model=16 model.d_ff=16 data.rows=8",
    "digits:swin": "model.d_model=12 model.d_ff=8 data.rows=8",
    "recurrent": "model.vocab_size=300 model.d_model=16 model.hidden_size=16",
    "recurrent:transformer": f"{_PAIRS} model.vocab_size=300",
    "recurrent:numerals": "model.vocab_size=300 model.d_model=16 model.hidden_size=16",
    "read_numbers": "model.d_model=16 model.d_ff=16 model.num_layers=1 model.encoder_d_model=16 "
    "model.encoder_d_ff=16 model.encoder_num_layers=1 data.rows=8",
    "spoken_numerals": _SPOKEN,
    "spoken_numerals:few": _SPOKEN,
    "spoken_numerals:pretrain": _SPOKEN,
    "spoken_numerals:decoder": "model.d_model=16 model.d_ff=16 model.num_layers=1 "
    "model.encoder_d_model=16 model.encoder_d_ff=16 model.encoder_num_layers=1",
    "gato": "model.d_model=16 model.d_ff=16 model.num_layers=1 data.text_rows=2 "
    "data.caption_rows=2 data.control_rows=2 data.episodes=4",
    "parsing:small": f"{_PAIRS} model.vocab_size=300",
    "student:firefox": f"{_STUDENT} {_PACKED}",
    "student": f"{_STUDENT} {_PACKED} model.vocab_size=300",
    "": f"{_PAIRS} model.vocab_size=300",
}
# Fields of every run, which come last.
FEW = (
    "training.steps=2 training.warmup_steps=1 training.checkpoint_every=1 training.eval_every=2 "
    "training.eval_sentences=0"
)


def shorten(words: list[str]) -> list[str]:
    """Returns a command with the options that make it short."""
    text = " ".join(words)
    if words[:2] in (["jaxformer", "train"], ["python", "train.py"], ["jaxformer", "distill"]):
        few = [f"--config.{field}" for field in FEW.split()]
        return [*words[:2], *_sizes(text), *words[2:], *few]

    for pattern, options in OPTIONS.items():
        if re.match(pattern, text):
            return [*words, *options.split()]
    return words


def _sizes(text: str) -> list[str]:
    """Returns the fields that make the model of a training run small."""
    if "init_from=pretrained" in text:
        return []  # The model has its sizes.

    config = re.search(r"(?:--student |--config=|train )(?:configs/)?([\w:.,]+)", text)
    assert config is not None, text
    name = config[1].replace(".py", "")
    kind, _, _ = name.partition(":")
    known = [each for each in (name, kind, "") if each in SIZES]
    fields = SIZES[known[0]].split()

    if "init_from" in text:
        fields = [field for field in fields if "vocab_size" not in field]
    return [f"--config.{field}" for field in fields]


# Comments after commands that are not their output.
REMARKS = {
    "lists the corpora, and whether they are present",
    "three runs of your own",
    "the paper's size, WMT14",
    "for a CPU",
    # The output of the real model; test_bergamot_package.py compares more of them with an engine.
    "Como você está hoje?",
}
# In place of "...", as a page asks for; the sentence of the paper's figure 4, simplified.
SENTENCE = "The law will never be perfect, but its application should be just."
# Further options by a pattern that begins there.
OPTIONS = {
    r"python -m jaxformer\.paper\.table3 ": "--scale smoke --steps 2 --rows base "
    "--data data/tatoeba-en-de",
    r"jaxformer doctor --config configs/big.py": "--config.model.d_model=32 --config.model.d_ff=64 "
    "--config.model.num_layers=1 --config.data.tokens_per_batch=512",
    # A smaller model than the one that comes with jaxformer, which other pages use.
    r"jaxformer (translate|score) (?!.*--workdir)": "--workdir runs/numerals",
    r"jaxformer generate ": "--tokens 8",
    r"jaxformer heads (?!.*--workdir)": "--workdir runs/numerals --beam-size 1 "
    "--max-extra-length 4",
    r"jaxformer evaluate ": "--beam-size 1 --max-extra-length 4",
    r"jaxformer average ": "--last 2",
    r"jaxformer replay ": "--step 1",
    r"python benchmarks/picture_sides\.py ": "--sides 224 448",
    r"jaxformer parse ": "--beam-size 2 --max-extra-length 8",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A data folder with a few lines of each public corpus that a page reads."""
    folder = tmp_path_factory.mktemp("data")
    pairs = [(spell_english(n), spell_german(n)) for n in range(100, 400)]
    for prefix, count in {
        "multi30k/train": 300,
        "multi30k/val": 8,
        "multi30k/test_2016_flickr": 4,
        "tatoeba-en-de/train": 300,
        "tatoeba-en-de/valid": 8,
    }.items():
        path = folder / prefix
        path.parent.mkdir(exist_ok=True)
        write_pairs(path, pairs[:count])

    for target in ("de", "fr"):
        _write_parquet(folder / f"wmt14-{target}-en", target, pairs)

    # As many different characters as Shakespeare's plays have.
    alphabet = string.ascii_letters + " \n!$&',-.3:;?"
    _write(folder / "tinyshakespeare" / "input.txt", f"ROMEO:\n{alphabet}" * 40)

    opinions = ("good", "bad")
    lines = [f"{n % 2} film {spell_english(n)} , {opinions[n % 2]}\n" for n in range(99)]
    for split in ("train", "dev"):
        _write(folder / "sst2" / f"stsa.binary.{split}", "".join(lines))

    for corpus in ("craft", "wsj-sample"):
        trees = folder / "trees" / corpus
        _write(trees / "train.trees", _trees(40))
        _write(trees / "dev.trees", _trees(4))
    return folder


def _write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_parquet(folder: pathlib.Path, target: str, pairs: list[tuple[str, str]]) -> None:
    """Writes sentence pairs in the format of the WMT14 corpora on the Hugging Face Hub."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for split, count in {"train": 300, "validation": 8}.items():
        rows = [{"translation": {"en": en, target: other}} for en, other in pairs[:count]]
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")


def _trees(count: int) -> str:
    nouns = [spell_english(n).split()[0] for n in range(count)]
    trees = [f"( (S (NP-SBJ (DT The) (NN {noun})) (VP (VBZ works)) (. .)) )\n" for noun in nouns]
    return "".join(trees)


class Reader:
    """The folder of a reader of one page, with the files that the page assumes."""

    def __init__(self, folder: pathlib.Path, data: pathlib.Path, shell: Shell) -> None:
        self.folder = folder
        self._shell = shell
        (folder / "configs").symlink_to(PROJECT / "configs")
        (folder / "benchmarks").symlink_to(PROJECT / "benchmarks")
        (folder / "data").symlink_to(data)
        (folder / "runs").mkdir()

    def run(self, command: str) -> str:
        """Runs a command, which must not fail, and returns its output."""
        found = self._shell.run(command)
        assert found.code == 0, f"{command}\n{found.errors}"
        return found.output

    def model(self, *names: str) -> None:
        """Puts a trained model of number words into ``runs``."""
        for name in names:
            shutil.copytree(FIXTURES / "workdir_8c81d1e" / "run", self.folder / "runs" / name)

    def foreign(self, name: str, fixture: str) -> None:
        """Puts a tiny model where the name of a model on the Hub, or a folder, is read."""
        shutil.copytree(FIXTURES / fixture, self.folder / name)

    def text(self, path: str, *lines: str) -> None:
        _write(self.folder / path, "".join(f"{line}\n" for line in lines))

    def pairs(self, path: str, *languages: str, count: int = 300) -> None:
        """Writes line-aligned texts of number words."""
        for language in languages:
            spell = spell_english if language == "en" else spell_german
            self.text(f"{path}.{language}", *map(spell, range(count)))


PREPARE: dict[str, Callable[[Reader], None]] = {}


def prepares(page: str) -> Callable[[Callable[[Reader], None]], Callable[[Reader], None]]:
    def register(function: Callable[[Reader], None]) -> Callable[[Reader], None]:
        PREPARE[page] = function
        return function

    return register


@prepares("README.md")
def _(reader: Reader) -> None:
    reader.pairs("my/train", "en", "de")


@prepares("docs/tutorial.md")
def _(reader: Reader) -> None:
    reader.pairs("my/train", "en", "de")
    (code,) = pages.sections("tutorial.md")["Change the config"]
    _write(reader.folder / "small.py", code)


@prepares("docs/commands.md")
def _(reader: Reader) -> None:
    reader.model("numerals")
    (reader.folder / "big.en.gz").write_bytes(gzip.compress(b"twelve\n"))
    (reader.folder / "gold.gz").write_bytes(gzip.compress(_trees(4).encode()))
    _write(reader.folder / "parsed.trees", _trees(4))


@prepares("docs/data.md")
def _(reader: Reader) -> None:
    reader.pairs("my/train", "en", "de")
    reader.pairs("my/train", "en", "fr")

    pairs = [(spell_english(n), spell_german(n)) for n in range(300)]
    reader.text("deu.txt", *[f"{en}\t{de}\tCC-BY" for en, de in pairs])
    reader.text("my/train.jsonl", *[json.dumps({"en": en, "de": de}) for en, de in pairs])
    reader.text("my/train.csv", "English,German", *[f"{en},{de}" for en, de in pairs])

    units = []
    for pair in pairs:
        sides = zip(("en", "de"), pair, strict=True)
        variants = [f'<tuv xml:lang="{name}"><seg>{text}</seg></tuv>' for name, text in sides]
        units.append(f"<tu>{''.join(variants)}</tu>")
    reader.text("my/memory.tmx", "<tmx><body>", *units, "</body></tmx>")


@prepares("docs/fine_tuning.md")
def _(reader: Reader) -> None:
    reader.model("numerals")
    pages.execute("fine_tuning.md", "A trained model on your own sentences")
    for name in ("my/train", "old/train", "my/test", "old/test"):
        reader.pairs(name, "en", "de")


@prepares("docs/decoding.md")
@prepares("docs/decoding_speed.md")
def _(reader: Reader) -> None:
    reader.model("numerals")


@prepares("docs/beam_search.md")
def _(reader: Reader) -> None:
    reader.model("numerals", "a", "b", "c")


@prepares("docs/marian.md")
def _(reader: Reader) -> None:
    reader.run("jaxformer train student --workdir runs/student")
    reader.run("cp -r runs/student runs/firefox")
    reader.run("jaxformer shortlist --workdir runs/firefox")
    reader.run("jaxformer export bergamot --workdir runs/firefox --output models/enpt")

    reader.pairs("train", "en", "pt")
    reader.pairs("valid", "en", "pt", count=4)
    reader.foreign("Helsinki-NLP/opus-mt-en-de", "marian/swish_tied")


@prepares("docs/nllb.md")
def _(reader: Reader) -> None:
    reader.foreign("facebook/nllb-200-distilled-600M", "huggingface/nllb")
    for code in ("eng_Latn", "gsw_Latn", "deu_Latn"):
        for name in ("train", "domain", "test"):
            reader.pairs(f"my/{name}", code, count=60)


@prepares("docs/distillation.md")
def _(reader: Reader) -> None:
    reader.model("teacher")


@prepares("docs/export.md")
def _(reader: Reader) -> None:
    reader.pairs("my/train", "en", "de")
    reader.model("tatoeba")
    reader.run("jaxformer train student --workdir runs/student")


@prepares("docs/attention.md")
def _(reader: Reader) -> None:
    reader.model("numerals")
    reader.pairs("valid", "en", "de", count=2)
    import_huggingface(FIXTURES / "huggingface" / "gpt2", reader.folder / "runs" / "gpt2")
    import_huggingface(FIXTURES / "bert" / "classifier", reader.folder / "runs" / "sst2")
    reader.text("dev.txt", "good a dog runs", "bad a cat")


@prepares("docs/classification.md")
def _(reader: Reader) -> None:
    lines = [spell_english(n) for n in range(99)]
    reader.text("texts.txt", *lines)
    reader.text("valid.txt", *lines[:9])
    reader.text("pairs.tsv", "a dog\ta cat")
    reader.foreign("sentence-transformers/all-MiniLM-L6-v2", "bert/plain")
    reader.foreign("google-bert/bert-base-uncased", "bert/plain")
    _write_annotations(reader)


def _write_annotations(reader: Reader) -> None:
    """Writes the files that the page on classification trains on."""
    answers = [{"text": "a dog", "answer_start": 0}]
    questions = [{"id": str(n), "question": "who runs?", "answers": answers} for n in range(8)]
    squad = {"data": [{"paragraphs": [{"context": "a dog runs", "qas": questions}]}]}
    for split in ("train", "dev"):
        _write(reader.folder / f"{split}-v1.1.json", json.dumps(squad))
    reader.text("page.txt", "a dog runs")

    tags = [f"{prefix}-{kind}" for prefix in "BI" for kind in ("PER", "ORG", "LOC", "MISC")]
    words = [f"dog {tag}" for tag in ("O", *tags)]
    pairs = [f"{label}\ta dog\ttwo books" for label in ("yes", "no", "maybe")] * 8
    numbers = [f"{number}\ta dog\ttwo books" for number in range(8)]
    choice = {"context": "a dog", "choices": ["runs", "is", "has", "it"], "label": 0}
    for split, other in (("train", "train"), ("valid", "dev")):
        reader.text(f"conll-{split}.txt", *words, "", *words)
        reader.text(f"mnli-{other}.tsv", *pairs)
        reader.text(f"stsb-{other}.tsv", *numbers)
        reader.text(f"swag-{other}.jsonl", *[json.dumps(choice)] * 8)


@prepares("docs/hugging_face.md")
def _(reader: Reader) -> None:
    for hub, fixture in {
        "openai-community/gpt2": "gpt2",
        "google/flan-t5-small": "t5",
        "facebook/nllb-200-distilled-600M": "nllb",
        "facebook/m2m100_418M": "m2m100",
        "google/vit-base-patch16-224": "vit",
    }.items():
        reader.foreign(hub, f"huggingface/{fixture}")
    reader.foreign("google-bert/bert-base-uncased", "bert/plain")
    for hub, fixture in {
        "FacebookAI/roberta-base": "roberta_masked",
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english": "distilbert_classes",
        "facebook/opt-125m": "opt",
        "facebook/bart-large-cnn": "bart",
        "facebook/mbart-large-50-many-to-many-mmt": "mbart_50",
    }.items():
        write_model(fixture, reader.folder / hub)
    reader.text("article.txt", "The old house")
    for file in ("texts.txt", "questions.txt", "answers.txt"):
        reader.text(file, "The old house", "A dog")

    images = np.zeros((2, 8, 12, 3), np.uint8)
    np.savez(reader.folder / "pictures.npz", images=images)


@prepares("docs/from_flax.md")
def _(reader: Reader) -> None:
    reader.foreign("google-bert/bert-base-uncased", "bert/plain")


@prepares("docs/language_model.md")
def _(reader: Reader) -> None:
    characters = "".join(map(chr, range(32, 127)))
    for file in ("mine.txt", "valid.txt"):
        reader.text(file, *[characters, "---"] * 60)
    reader.text("prompts.txt", "ROMEO:", "To be")


@prepares("docs/parsing.md")
def _(reader: Reader) -> None:
    _write(reader.folder / "my" / "train.trees", _trees(40))
    (reader.folder / "more.trees.gz").write_bytes(gzip.compress(_trees(40).encode()))
    for file in ("my/dev.trees", "dev.trees"):
        _write(reader.folder / file, _trees(4))
    reader.text("words.txt", "The gene works .")


@prepares("docs/reproduce.md")
def _(reader: Reader) -> None:
    reader.pairs("newstest2014", "en", "de", count=4)
    reader.pairs("newstest2014_fr", "en", count=4)
    reader.pairs("newstest2014", "fr", count=4)


@prepares("docs/runs.md")
def _(reader: Reader) -> None:
    reader.run("jaxformer train base --workdir runs/base")
    reader.run("jaxformer train multi30k --workdir runs/multi30k")


@prepares("docs/pictures_and_text.md")
def _(reader: Reader) -> None:
    write_model("clip", reader.folder / "openai" / "clip-vit-base-patch32")
    reader.text("labels.txt", "cat", "dog")
    write_model("vit_and_bert", reader.folder / "vit-bert")
    write_model("trocr", reader.folder / "microsoft" / "trocr-base-handwritten")
    (reader.folder / "lines").mkdir()
    line = np.zeros((12, 30, 3), np.uint8)
    PIL.Image.fromarray(line).save(reader.folder / "lines" / "1.png")

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 32, 32, 3), np.uint8)
    np.savez(reader.folder / "photos.npz", images=images[:, :8, :8])
    np.savez(reader.folder / "pictures.npz", images=images)
    texts = [glyph.name for glyph in known_glyphs()]
    for name in ("pairs", "more_pairs"):
        path = reader.folder / f"{name}.npz"
        np.savez(path, images=np.tile(images, (10, 1, 1, 1)), texts=texts[:200])


@prepares("docs/whisper.md")
def _(reader: Reader) -> None:
    write_model("whisper", reader.folder / "openai" / "whisper-tiny")
    for name in "ab":
        wavfile.write(reader.folder / f"{name}.wav", RATE, random_wave(0.5, seed=1))
    for split in ("train", "valid"):
        reader.text(f"{split}.tsv", *["a.wav\tthe cat", "b.wav\ta dog"] * 4)


@prepares("docs/gato.md")
def _(reader: Reader) -> None:
    images = np.zeros((2, 8, 8), np.uint8)
    np.savez(reader.folder / "digits.npz", images=images, labels=[3, 4])


@prepares("docs/vision.md")
def _(reader: Reader) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 32, 32, 3), np.uint8)
    for name in ("pictures", "more"):
        np.savez(reader.folder / f"{name}.npz", images=images, labels=np.arange(20) % 10)
    write_model("dinov2_smaller", reader.folder / "facebook/dinov2-base")

    for name in ("animals", "photos"):
        for number, image in enumerate(images):
            path = reader.folder / name / "abc"[number % 3] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(image).save(path)


@prepares("docs/sound.md")
def _(reader: Reader) -> None:
    for folder in ("spoken_numerals", "my"):
        (reader.folder / folder).mkdir()
    rng = np.random.default_rng(0)
    texts = [spell_english(number) for number in (0, 2, 3, 4, 5, 6, 7, 8, 11, 20, 100, 1000)]
    waves = rng.integers(-999, 999, (len(texts), 7000)).astype(np.int16)
    for name in ("train", "few", "valid"):
        np.savez(
            reader.folder / "spoken_numerals" / f"{name}.npz",
            samples=waves.ravel(),
            lengths=np.full(len(texts), 7000),
            rate=8000,
            transcripts=np.array(texts),
        )

    lines = []
    for number, (text, wave) in enumerate(zip(texts, waves, strict=True)):
        name = "ab"[number] if number < 2 else str(number)
        wavfile.write(reader.folder / "my" / f"{name}.wav", 8000, wave)
        lines.append(f"{name}.wav\t{text}\n")
    for name in ("train", "valid"):
        (reader.folder / "my" / f"{name}.tsv").write_text("".join(lines))
    reader.run("jaxformer train spoken_numerals --workdir runs/wav2vec2")
    write_model("wav2vec2_gpt2", reader.folder / "my" / "speech-pair")


@prepares("jaxformer/pretrained/README.md")
def _(reader: Reader) -> None:
    for path in ("tatoeba/train", "multi30k/train", "distilled"):
        reader.pairs(path, "en", "de")
    reader.pairs("valid", "en", "de", count=4)
    shutil.copy(pretrained.WORKDIR / "tokenizer.model", reader.folder)


@pytest.fixture
def shell(
    tmp_path: pathlib.Path,
    data: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shell]:
    """A shell in a reader's folder, on one device."""
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: devices)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # Pages share compiled programs.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXFORMER_DATA", str(data))

    shell = Shell(tmp_path, shorten)
    yield shell
    shell.close()


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=printed.name)
def test_every_command_runs(
    page: pathlib.Path,
    shell: Shell,
    data: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """In the order of the page, since some need the results of others."""
    reader = Reader(tmp_path, data, shell)
    prepare = PREPARE.get(printed.name(page))
    if prepare is not None:
        prepare(reader)

    for command in printed.shell_commands(page):
        if any(re.match(pattern, command) for pattern in NOT_RUN):
            continue

        output = reader.run(command.replace('"..."', f'"{SENTENCE}"'))
        # A comment after a command is its output, unless it is a remark.
        assert printed.comment(command) in {"", output.strip(), *REMARKS}, command


def test_commands_that_do_not_run_are_printed() -> None:
    """An entry of the table that no page needs is removed."""
    commands = [command for page in WITH_COMMANDS for command in printed.shell_commands(page)]
    for pattern in NOT_RUN:
        assert any(re.match(pattern, command) for command in commands), pattern
