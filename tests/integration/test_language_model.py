"""A language model from training to generation: train, resume, generate, and refuse mistakes."""

import io
import itertools
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.config import Config, ModelConfig, StreamConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.inference.attention_view import record_text
from jaxformer.inference.conversions import average, quantize
from jaxformer.inference.generator import Generator
from jaxformer.inference.translator import Translator
from jaxformer.models.language_model import LanguageModel
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch, Sampling

from ..runs import changed
from . import pages

# Each line is the alphabet.
TEXT = "abcdefghijklmnopqrstuvwxyz\n" * 40


class Trained(NamedTuple):
    """A config and the workdir of its run."""

    config: Config
    workdir: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a run that learns the alphabet."""
    folder = tmp_path_factory.mktemp("alphabet")
    (folder / "text.txt").write_text(TEXT)
    config = Config(
        model=ModelConfig(
            vocab_size=31,
            d_model=32,
            d_ff=64,
            num_heads=2,
            num_layers=1,
            dropout_rate=0.0,
            norm_position="pre",
            positions="learned",
            activation="gelu",
            max_length=32,
        ),
        data=StreamConfig(file=str(folder / "text.txt"), length=32, rows=8),
        training=TrainingConfig(
            steps=120,
            warmup_steps=10,
            learning_rate_scale=0.3,
            weight_decay=0.01,
            label_smoothing=0.0,
            optimizer="muon",
            schedule="linear",
            log_every=40,
            eval_every=120,
            checkpoint_every=40,
        ),
        search=Sampling(num_samples=1, temperature=0.5),
    )
    train(config, folder / "run")
    return Trained(config, folder / "run")


def test_a_model_of_documents_ends_its_texts(run, tmp_path, capsys):
    """The same alphabets, each a document, with a validation file of its own."""
    line = TEXT[:27]
    for name, count in (("train", 40), ("valid", 4)):
        (tmp_path / name).write_text(f"{line}---\n" * count)
    documents = {
        "file": str(tmp_path / "train"),
        "valid": str(tmp_path / "valid"),
        "separator": "---",
    }
    config = changed(run.config, data=documents)

    train(config, tmp_path / "run")
    counts = "1,120 training tokens, 112 validation tokens of 124 characters"
    assert counts in capsys.readouterr().err

    generator = Generator.load(tmp_path / "run")
    assert generator.generate(["", "opq"], max_tokens=60) == [line, line[17:]]

    (tmp_path / "valid").write_text(line * 4)
    with pytest.raises(UserError, match="began with other data: validation text was"):
        train(config, tmp_path / "run")

    other = changed(config, data={"separator": "=="}, model={"vocab_size": 32})  # with "-"
    with pytest.raises(UserError, match=r"data\.separator: expected lines '==' in .*train"):
        train(other, tmp_path / "other")


@pytest.mark.ci
def test_the_page_runs_in_ones_own_code_and_generates(run, tmp_path, monkeypatch, capsys):
    names = pages.execute("language_model.md", "The model in your own code")
    assert names["logits"].shape == (1, 3, 69)
    assert names["result"].tokens.shape == (1, 2, 20)

    monkeypatch.chdir(tmp_path)
    shutil.copytree(run.workdir, tmp_path / "runs" / "shakespeare")
    names = {}
    for heading in ("Generate", "Several models"):
        (block,) = pages.sections("language_model.md")[heading]
        # The model has seen lower-case letters only.
        block = block.replace("ROMEO:", "romeo").replace("JULIET:", "juliet")

        capsys.readouterr()
        pages.run("language_model.md", block, names)
        if heading == "Generate":
            assert capsys.readouterr().out


def test_attention_has_the_characters_of_a_text_that_fits(run):
    """test_huggingface.py compares weights with transformers."""
    view = record_text(run.workdir, "xyz\nab")
    assert view.decoder.shape == (1, 2, 6, 6)
    assert view.target == ["x", "y", "z", "↵", "a", "b"]

    with pytest.raises(UserError, match="sequence of 33 tokens: the model allows at most 32"):
        record_text(run.workdir, "x" * 33)


def test_samples_are_drawn_from_the_model_step_by_step(run):
    """The reference is the full forward pass after every token, beyond the context length."""
    generator = Generator.load(run.workdir)
    model = LanguageModel(run.config.model)

    @jax.jit
    def draw(tokens, length, window, step):
        all_logits = model.apply({"params": generator.params}, tokens)  # [1, T, V]
        logits = all_logits[0, length - 1]
        logits = logits.at[:4].set(-jnp.inf)  # only letters
        key = jax.random.key(0)
        for number in (0, 0, window, 0, step):
            key = jax.random.fold_in(key, number)
        return jax.random.categorical(key, logits / 0.5)

    # The context is full after 33 tokens; then its second half is read again.
    tokens = generator.prompt_ids("xyz\nab")
    prompt_length = len(tokens)
    start = 0
    window = 0
    step = 0
    for _ in range(60):
        if len(tokens) - start > 32:
            start = len(tokens) - 16
            window += 1
            step = 0

        context = tokens[start:]
        padded = np.zeros((1, 32), np.int32)
        padded[0, : len(context)] = context
        token = draw(padded, len(context), window, step)
        tokens.append(int(token))
        step += 1

    (found,) = generator.generate(["xyz\nab"], max_tokens=60)
    assert found == generator.tokenizer.decode(tokens[prompt_length:])


@pytest.mark.ci
def test_a_sample_depends_only_on_its_prompt_and_numbers(run):
    three = Generator.load(run.workdir, search=Sampling(num_samples=3, temperature=3.0))
    prompts = ["abc", "", "xyzab", "abc"]
    found = three.continuations(prompts, max_tokens=40)
    assert [len(texts) for texts in found] == [3] * 4
    for text in itertools.chain(*found):
        assert len(text) == 40

    # Neither on the other prompts,
    assert three.continuations(["abc"], max_tokens=40) == [found[0]]
    # but on the number of the sample,
    assert len({*found[0], *found[3]}) == 6
    # and not on how many there are, or on whether they are streamed.
    one = Generator.load(run.workdir, search=Sampling(num_samples=1, temperature=3.0))
    first_samples = [texts[0] for texts in found]
    assert one.generate(prompts, max_tokens=40) == first_samples
    streamed = "".join(one.stream("abc", max_tokens=40))
    assert one.generate(["abc"], max_tokens=40) == [streamed]


@pytest.mark.ci
def test_the_maximum_of_the_search_ends_a_text(run):
    short = Generator.load(run.workdir, search=Sampling(num_samples=1, max_length=3))
    (text,) = short.generate(["ab"], max_tokens=20)
    assert len(text) == 3
    assert len("".join(short.stream("ab", max_tokens=20))) == 3


def test_beam_search_finds_the_most_probable_continuation(run):
    """The reference is the probability of every pair of letters."""
    generator = Generator.load(run.workdir, search=BeamSearch(beam_size=31))
    (found,) = generator.continuations(["klm"], max_tokens=2)

    letters = range(4, 31)
    prompt = generator.prompt_ids("klm")
    beginnings = [[*prompt, first] for first in letters]
    rows = np.array(beginnings, np.int32)
    apply = jax.jit(LanguageModel(run.config.model).apply)
    logits = apply({"params": generator.params}, rows)
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    log_probs = jax.device_get(log_probs)  # [first, T, V]
    pairs = {}
    for row, first in enumerate(letters):
        of_first = log_probs[0, -2, first]
        for second in letters:
            of_second = log_probs[row, -1, second]
            pairs[first, second] = of_first + of_second
    ranked = sorted(pairs, key=pairs.__getitem__, reverse=True)
    best = list(map(generator.tokenizer.decode, ranked[:5]))
    assert found[:5] == best

    with pytest.raises(UserError, match="expected at most 30 tokens after this prompt, got 31"):
        generator.generate(["klm"], max_tokens=31)


@pytest.mark.ci
def test_averages_and_other_dtypes_generate(run, tmp_path):
    workdir = shutil.copytree(run.workdir, tmp_path / "run")
    greedy = BeamSearch(beam_size=1)

    average(Workdir(workdir), 2)
    averaged = Generator.load(workdir, compute_dtype="bfloat16", search=greedy)
    assert averaged.weights == "average of steps 80, 120"
    assert averaged.generate(["abc"], max_tokens=10) == ["defghijklm"]

    before, after = quantize(workdir, tmp_path / "int8")
    assert after < before / 2
    quantized = Generator.load(tmp_path / "int8", search=greedy)
    assert quantized.generate(["abc"], max_tokens=10) == ["defghijklm"]
    with pytest.raises(UserError, match="quantized to int8: expected to compute in int8"):
        Generator.load(tmp_path / "int8", compute_dtype="float32")


@pytest.fixture
def generate(run, monkeypatch, capsys):
    """Returns a function that runs the command, and returns exit code, output and errors."""

    def command(options, content=b"", workdir=run.workdir):
        stdin = io.TextIOWrapper(io.BytesIO(content), "utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        code = main(["generate", "--workdir", str(workdir), *options])
        out, err = capsys.readouterr()
        return code, out, err

    return command


def test_command_streams_prompt_and_continuation(run, monkeypatch, capsys):
    """The output is written in several pieces, each of them flushed."""
    written = []

    class Stream(io.StringIO):
        def flush(self):
            written.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Stream())
    workdir = str(run.workdir)
    assert main(["generate", "--workdir", workdir, "--prompt", "abc", "--tokens", "50"]) == 0
    (continuation,) = Generator.load(workdir).generate(["abc"], max_tokens=50)
    assert written[-1] == f"abc{continuation}\n"

    lengths = {len(text) for text in written}
    assert len(lengths) >= 6
    for text, later in itertools.pairwise(written):
        assert later.startswith(text)
    assert capsys.readouterr().err == f"{workdir}: step 120\n"


def test_a_bad_prompt_gives_empty_texts(generate):
    lines = b"abc\n\xff\nx\xc3\x89\nxy"
    options = ["--tokens", "4", "--temperature", "0.1"]

    code, out, err = generate([*options, "--samples", "2"], lines)
    texts = ["abcdefg", "abcdefg", "", "", "", "", "xyz\nab", "xyz\nab"]
    assert code == 3
    assert out == "\n---\n".join(texts) + "\n"
    assert "error: standard input:2: not UTF-8" in err
    assert "error: standard input:3: the model has never seen the character 'É'" in err
    assert err.endswith("error: 2 of 4 lines failed; see above\n")

    code, out, err = generate([*options, "--strict"], lines)
    assert code == 2
    assert out == ""
    assert "error: standard input:2: not UTF-8" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", "abc", "--tokens", "0"], "--tokens must be at least 1: got 0"),
        (["--prompt", "É"], "the model has never seen the character 'É'"),
    ],
)
def test_a_mistake_gives_one_line(generate, options, words):
    code, out, err = generate(options)
    assert code == 2
    assert out == ""
    assert f"error: {words}" in err
    assert "Traceback" not in err


def test_models_of_another_kind_are_refused(run, generate, learned_workdir, capsys):
    with pytest.raises(UserError, match="a language model or a multi-task agent, got a model of"):
        Generator.load(learned_workdir)
    with pytest.raises(UserError, match="a model of sentence pairs or a parser, got a language"):
        Translator.load(run.workdir)

    code, _, err = generate(["--prompt", "a"], workdir=learned_workdir)
    assert code == 2
    assert "jaxformer translate" in err

    assert main(["translate", "--workdir", str(run.workdir), "--input", "none"]) == 2
    assert "jaxformer generate" in capsys.readouterr().err
