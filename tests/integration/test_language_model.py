"""A language model from training to generation: train, resume, generate, and refuse mistakes."""

import dataclasses
import io
import itertools
import json
import shutil
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.cli import main
from jaxformer.cli.arguments import parse
from jaxformer.cli.generate import search_settings
from jaxformer.config import Config, ModelConfig, StreamConfig, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.inference.generator import Generator, _only_text
from jaxformer.inference.quantization import quantize
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import average
from jaxformer.models.language_model import LanguageModel
from jaxformer.search import BeamSearch, Sampling
from jaxformer.search.constraints import SearchContext
from jaxformer.workdir import Workdir

from . import pages

# Each line is the alphabet.
TEXT = "abcdefghijklmnopqrstuvwxyz\n" * 40


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a config that learns the alphabet, and the workdir of its run."""
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
            label_smoothing=0.0,
            optimizer="muon",
            schedule="linear",
            weight_decay=0.01,
            log_every=40,
            eval_every=120,
            checkpoint_every=40,
        ),
        search=Sampling(num_samples=1, temperature=0.5),
    )
    train(config, folder / "run")
    return config, folder / "run"


def test_the_page_runs_in_ones_own_code():
    names = {}
    for block in pages.sections("language_model.md")["The model in your own code"]:
        pages.run("language_model.md", block, names)
    assert names["logits"].shape == (1, 3, 69)
    assert names["result"].tokens.shape == (1, 2, 20)


def test_the_page_generates(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run[1], tmp_path / "runs" / "shakespeare")
    (block,) = pages.sections("language_model.md")["Generate"]
    # The model has seen lower-case letters only.
    block = block.replace("ROMEO:", "romeo").replace("JULIET:", "juliet")
    pages.run("language_model.md", block, {})
    assert capsys.readouterr().out


@pytest.fixture
def feed(monkeypatch):
    """Returns a function that puts text on standard input."""

    def put(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))

    return put


def reports(workdir):
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_it_learns_the_alphabet(run):
    valid = [report for report in reports(run[1]) if report["kind"] == "valid"]
    assert valid[-1]["nats_per_character"] < 0.3
    continuation = TEXT[3:103]
    assert Generator.load(run[1]).generate(["abc"], max_tokens=100)[0][:20] == continuation[:20]


@pytest.mark.ci
def test_a_run_resumes_exactly(run, tmp_path):
    config, whole = run
    workdir = tmp_path / "run"
    shutil.copytree(whole, workdir)
    for step in (80, 120):
        shutil.rmtree(workdir / "checkpoints" / str(step))
    (workdir / "committed.json").unlink()
    train(config, workdir)
    for ours, theirs in zip(reports(workdir), reports(whole), strict=True):
        assert (ours["kind"], ours["step"]) == (theirs["kind"], theirs["step"])
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_a_run_keeps_its_text(run, tmp_path):
    config, whole = run
    workdir = shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "other.txt").write_text(TEXT.replace("xyz", "zyx"))
    data = dataclasses.replace(config.data, file=str(tmp_path / "other.txt"))
    with pytest.raises(UserError, match="the run began with other data: text was"):
        train(dataclasses.replace(config, data=data), workdir)
    (tmp_path / "other.txt").write_text(TEXT)  # the text may move
    train(dataclasses.replace(config, data=data), workdir)
    shorter = dataclasses.replace(config, data=dataclasses.replace(config.data, length=16))
    with pytest.raises(UserError, match=r"holds a run with data\.length=32, but 16 was given"):
        train(shorter, workdir)


def test_samples_are_drawn_from_the_model_step_by_step(run):
    """The reference is the full forward pass after every token, beyond the context length."""
    config, workdir = run
    generator = Generator.load(workdir)
    model = LanguageModel(config.model)
    apply = jax.jit(model.apply)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0)
    tokens = generator.prompt_ids("xyz\nab")
    # The context is full after 33 tokens; then its second half is read again.
    start, window, step, expected = 0, 0, 0, []
    for _ in range(60):
        if len(tokens) - start > 32:
            start, window, step = len(tokens) - 16, window + 1, 0
        padded = np.zeros((1, 32), np.int32)
        padded[0, : len(tokens) - start] = tokens[start:]
        logits = apply({"params": generator.params}, jnp.asarray(padded))
        logits = logits[0, len(tokens) - start - 1].at[:4].set(-jnp.inf) / 0.5
        own = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, window), 0), step)
        tokens.append(int(jax.random.categorical(own, logits)))
        expected.append(tokens[-1])
        step += 1
    found = generator.generate(["xyz\nab"], max_tokens=60)[0]
    assert found == generator.tokenizer.decode(expected)


@pytest.mark.ci
def test_a_sample_depends_only_on_its_prompt_and_numbers(run):
    generator = Generator.load(run[1], search=Sampling(num_samples=3, temperature=3.0))
    prompts = ["abc", "", "xyzab", "abc"]
    found = generator.continuations(prompts, max_tokens=40)
    assert [len(texts) for texts in found] == [3] * 4
    assert all(len(text) == 40 for texts in found for text in texts)
    assert found[0] == generator.continuations(["abc"], max_tokens=40)[0]
    assert len({*found[0], *found[3]}) == 6
    fewer = Generator.load(run[1], search=Sampling(num_samples=1, temperature=3.0))
    assert fewer.generate(prompts, max_tokens=40) == [texts[0] for texts in found]
    assert fewer.generate(["abc"], max_tokens=40) == ["".join(fewer.stream("abc", max_tokens=40))]
    pieces = list(fewer.stream("abc", max_tokens=40))
    assert len(pieces) >= 5


@pytest.mark.ci
def test_a_search_limits_the_length(run):
    short = Sampling(num_samples=1, max_length=3)
    assert len(Generator.load(run[1], search=short).generate(["ab"], max_tokens=20)[0]) == 3
    assert len("".join(Generator.load(run[1], search=short).stream("ab", max_tokens=20))) == 3


def test_a_text_without_a_permitted_token_ends(run):
    # There are 27 characters, and no one may come twice.
    generator = Generator.load(run[1], search=Sampling(no_repeat_ngram=1))
    windows = mock.patch.object(Generator, "_window", autospec=True, side_effect=Generator._window)
    with windows as window:
        (text,) = generator.generate(["a"], max_tokens=10_000)
    assert len(text) == len(set(text)) == 27
    assert window.call_count == 1
    assert "".join(generator.stream("a", max_tokens=100)) == text
    beam = Generator.load(run[1], search=BeamSearch(beam_size=3, no_repeat_ngram=1))
    texts = beam.continuations(["a"], max_tokens=30)[0]
    assert len(texts) == len(set(texts)) == 3
    assert all(len(text) == len(set(text)) == 27 for text in texts)


@dataclasses.dataclass(frozen=True)
class DeadEnd:
    """Permits no token after two, if the first one is the given one."""

    first: int

    def __call__(self, logits, context):
        is_dead = (context.tokens[:, :, 0] == self.first) & (context.step >= 2)
        return jnp.where(is_dead[:, :, None], -jnp.inf, logits)


def test_a_dead_end_does_not_replace_whole_texts(run):
    """The model has never seen the end of a text, so it is the least likely one."""
    b = Generator.load(run[1]).prompt_ids("b")[0]
    search = BeamSearch(beam_size=4, constraints=(DeadEnd(b),))
    texts = Generator.load(run[1], search=search).continuations(["a"], max_tokens=6)[0]
    assert "bc" not in texts
    assert [len(text) for text in texts] == [6] * 4


def test_the_score_of_a_dead_end_is_the_models():
    logits = jnp.arange(12.0).reshape(1, 2, 6)
    context = SearchContext(logits, *[None] * 4, eos_id=1, pad_id=0)
    forbidden = logits.at[:, 1].set(-jnp.inf)
    found = _only_text(forbidden, context)
    inf = np.inf
    np.testing.assert_array_equal(
        found[0], [[-inf, -inf, -inf, -inf, 4, 5], [-inf, 7, -inf, -inf, -inf, -inf]]
    )


def test_beam_search_finds_the_most_probable_continuation(run):
    generator = Generator.load(run[1], search=BeamSearch(beam_size=31))
    model, tokens = LanguageModel(run[0].model), generator.prompt_ids("klm")

    def log_probs(ids):
        logits = model.apply({"params": generator.params}, jnp.asarray([ids]))
        return jax.nn.log_softmax(logits[0].astype(jnp.float32))

    first = log_probs(tokens)[-1]
    pairs = {
        (a, b): float(first[a] + second[b])
        for a in range(4, 31)
        for second in [log_probs([*tokens, a])[-1]]
        for b in range(4, 31)
    }
    best = max(pairs, key=pairs.__getitem__)
    found = generator.continuations(["klm"], max_tokens=2)[0]
    assert found[0] == generator.tokenizer.decode(best)
    ranked = sorted(pairs, key=pairs.__getitem__, reverse=True)
    assert found[:5] == [generator.tokenizer.decode(pair) for pair in ranked[:5]]
    with pytest.raises(UserError, match="expected at most 30 tokens after this prompt, got 31"):
        generator.generate(["klm"], max_tokens=31)


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_it_generates_in_other_dtypes(run, dtype):
    found = Generator.load(run[1], compute_dtype=dtype, search=BeamSearch(beam_size=1))
    assert found.generate(["abc"], max_tokens=10) == ["defghijklm"]


@pytest.mark.ci
def test_average_and_int8_workdirs_generate(run, tmp_path):
    workdir = shutil.copytree(run[1], tmp_path / "run")
    average(Workdir(workdir), 2)
    assert Generator.load(workdir).weights == "average of steps 80, 120"
    before, after = quantize(workdir, tmp_path / "int8")
    assert after < before / 2
    greedy = BeamSearch(beam_size=1)
    assert Generator.load(tmp_path / "int8", search=greedy).generate(["abc"], max_tokens=5) == [
        "defgh"
    ]
    with pytest.raises(UserError, match="quantized to int8: expected to compute in int8"):
        Generator.load(tmp_path / "int8", compute_dtype="float32")


def test_command_writes_prompt_and_continuation(run, capsys):
    arguments = ["generate", "--workdir", str(run[1]), "--prompt", "abc", "--tokens", "50"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == "abc" + Generator.load(run[1]).generate(["abc"], max_tokens=50)[0] + "\n"
    assert err == f"{run[1]}: step 120\n"


def test_command_streams(run, monkeypatch):
    """The output is written in several pieces, each of them flushed."""
    written = []

    class Stream(io.StringIO):
        def flush(self):
            written.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Stream())
    assert main(["generate", "--workdir", str(run[1]), "--prompt", "abc", "--tokens", "50"]) == 0
    lengths = sorted({len(text) for text in written})
    assert len(lengths) >= 6
    assert all(later.startswith(text) for text, later in itertools.pairwise(written))


def test_command_reads_prompts_from_standard_input(run, feed, capsys):
    feed(b"abc\nxy\n")
    options = ["--tokens", "4", "--samples", "2", "--top-k", "1", "--seed", "3"]
    assert main(["generate", "--workdir", str(run[1]), *options]) == 0
    out = capsys.readouterr().out
    assert out == "abcdefg\n---\nabcdefg\n---\nxyz\nab\n---\nxyz\nab\n"


def test_equal_lines_get_different_samples(run, feed, capsys):
    feed(b"abc\nabc\n")
    options = ["--tokens", "20", "--temperature", "4", "--seed", "1"]
    assert main(["generate", "--workdir", str(run[1]), *options]) == 0
    generator = Generator.load(run[1], search=Sampling(num_samples=1, temperature=4.0, seed=1))
    texts = [f"abc{text}" for text in generator.generate(["abc", "abc"], max_tokens=20)]
    assert texts[0] != texts[1]
    assert capsys.readouterr().out == "\n---\n".join(texts) + "\n"


@pytest.mark.parametrize(
    ("flags", "search", "expected"),
    [
        (
            "--beam-size 4",
            Sampling(no_repeat_ngram=3, max_length=7, top_k=5),
            BeamSearch(beam_size=4, no_repeat_ngram=3, max_length=7, length_penalty=0.6),
        ),
        (
            "--beam-size 4",
            BeamSearch(no_repeat_ngram=3, early_stop="full"),
            BeamSearch(beam_size=4, no_repeat_ngram=3, early_stop="full"),
        ),
        (
            "--top-k 5",
            BeamSearch(no_repeat_ngram=3, early_stop="full"),
            Sampling(num_samples=1, no_repeat_ngram=3, top_k=5),
        ),
        ("", Sampling(top_k=5, seed=3), Sampling(top_k=5, seed=3)),
    ],
)
def test_options_keep_the_settings_of_the_run(flags, search, expected):
    options = parse(["generate", "--workdir", "run", *flags.split()])
    assert search_settings(options, search) == expected


def test_a_bad_prompt_gives_empty_texts(run, feed, capsys):
    lines = b"abc\n\xff\nx\xc3\x89\nxy"
    options = ["--workdir", str(run[1]), "--tokens", "4", "--top-k", "1", "--seed", "3"]
    feed(lines)
    assert main(["generate", *options, "--samples", "2"]) == 3
    out, err = capsys.readouterr()
    texts = ["abcdefg", "abcdefg", "", "", "", "", "xyz\nab", "xyz\nab"]
    assert out == "\n---\n".join(texts) + "\n"
    assert "error: standard input:2: not UTF-8" in err
    assert "error: standard input:3: the model has never seen the character 'É'" in err
    assert err.endswith("error: 2 of 4 lines could not be done; see above\n")
    feed(lines)
    assert main(["generate", *options, "--strict"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: standard input:2: not UTF-8" in err


def test_a_prompt_beyond_the_context_of_beam_search_is_bad(run, feed, capsys):
    feed(b"klm\n" + b"a" * 100 + b"\n")
    options = ["--tokens", "5", "--beam-size", "3"]
    assert main(["generate", "--workdir", str(run[1]), *options]) == 3
    out, err = capsys.readouterr()
    assert out == "klmnopqr\n---\n\n"
    assert "error: standard input:2: beam search keeps to the model's context" in err


def test_command_searches(run, capsys):
    options = ["--prompt", "klm", "--tokens", "5", "--beam-size", "3"]
    assert main(["generate", "--workdir", str(run[1]), *options]) == 0
    assert capsys.readouterr().out == "klmnopqr\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", "abc", "--tokens", "0"], "--tokens must be at least 1: got 0"),
        (["--prompt", "É"], "the model has never seen the character 'É'"),
        (["--prompt", "a", "--beam-size", "2", "--top-k", "3"], "--top-k is for sampling, not"),
        (["--prompt", "a", "--top-p", "2"], "top_p must be above 0 and at most 1: got 2.0"),
        (["--prompt", "a", "--weights", "7"], "--weights must be averaged, best, latest, auto or"),
    ],
)
def test_a_mistake_gives_one_line(run, capsys, options, words):
    assert main(["generate", "--workdir", str(run[1]), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: {words}" in err
    assert "Traceback" not in err


def test_models_of_another_kind_are_refused(run, tiny_workdir, capsys):
    with pytest.raises(UserError, match=r"expected a language model, of data\.corpus=stream"):
        Generator.load(tiny_workdir)
    with pytest.raises(UserError, match="expected a model of sentence pairs, got a language model"):
        Translator.load(run[1])
    assert main(["generate", "--workdir", str(tiny_workdir), "--prompt", "a"]) == 2
    assert "jaxformer translate" in capsys.readouterr().err
    assert main(["translate", "--workdir", str(run[1]), "--input", "none"]) == 2
    assert "jaxformer generate" in capsys.readouterr().err


def test_config_round_trip(run):
    values = run[0].to_dict()
    assert values["data"]["corpus"] == "stream"
    assert Config.from_dict(json.loads(json.dumps(values))) == run[0]
