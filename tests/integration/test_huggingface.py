"""Imported models of Hugging Face against transformers: logits, searches, and the way back.

The fixtures are made by ``tests/fixtures/make_huggingface.py``.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import shutil
import tempfile

import jax
import numpy as np
import pytest
import safetensors.numpy

import jaxformer as jx
from jaxformer import Generator, Translator, load_model, quantize
from jaxformer.cli import main
from jaxformer.errors import UserError
from jaxformer.experiment import train
from jaxformer.inference.alignment import word_ids
from jaxformer.inference.attention_view import record_text
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.models.stepwise import step_fn
from jaxformer.search import BeamSearch, Sampling

from ..profiles import by_profile
from . import pages

pytest.importorskip("tokenizers")

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures" / "huggingface"
MODELS = by_profile(
    ["gpt2", "llama_grouped", "mistral", "qwen2", "qwen3"],
    nightly=["gpt2", "llama_grouped", "mistral", "qwen2", "qwen3", "llama", "llama_multi_query"],
)
# Encoder-decoders; together, they have every flag.
PAIRS = ["t5", "t5_gated", "umt5", "nllb", "m2m100", "mt5"]
LANGUAGES = {"nllb": ("eng_Latn", "deu_Latn"), "m2m100": ("en", "de")}
LIMIT, PROMPT = 16, "the old house"


@functools.cache
def imported(name):
    folder = pathlib.Path(tempfile.mkdtemp())
    import_huggingface(FIXTURES / name, folder / "run", LANGUAGES.get(name, ()))
    outputs = dict(np.load(FIXTURES / name / "outputs.npz"))
    return folder / "run", TrainedModel.load(folder / "run"), outputs


def relative_difference(found, expected):
    return np.abs(found - expected).max() / expected.std()


def inputs_of(name):
    """Returns the token ids of the model's inputs, in our numbers."""
    _, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    tokens = ours[outputs["tokens"]]
    if name not in PAIRS:
        return (tokens,)
    tokens[:, 0] = 2  # Our beginning of sentence is a token with another role there.
    return np.where(outputs["prompts"] == 0, 0, ours[outputs["prompts"]]), tokens


DROPOUT = {
    "gpt2": "no dropout in fine-tuning, as in config.json",
    "llama": "attention dropout 0.3 in fine-tuning, as in config.json",
    "nllb": "dropout 0.1 and attention dropout 0.1 in fine-tuning, as in config.json, but not "
    "encoder_layerdrop=0.05 or decoder_layerdrop=0.05",
    "t5": "dropout 0.1 in fine-tuning, as in config.json, but not dropout_rate=0.1 within feed-"
    "forward networks and after the last norms",
}


@pytest.mark.parametrize("name", DROPOUT)
def test_the_import_names_rates_of_dropout(name, tmp_path):
    folder = shutil.copytree(FIXTURES / name, tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    rates = {"attention_dropout": 0.3} if name == "llama" else {}
    (folder / "config.json").write_text(json.dumps(fields | rates))
    summary = import_huggingface(folder, tmp_path / "run", LANGUAGES.get(name, ()))
    assert summary.splitlines()[1:] == [f"  {DROPOUT[name]}"]


def test_a_vit_equals_transformers(capsys):
    workdir, _, outputs = imported("vit")
    model, params = load_model(workdir)
    pixels = outputs["images"] / np.float32(127.5) - 1
    found = np.asarray(jax.jit(model.apply)({"params": params}, pixels))
    assert relative_difference(found, outputs["logits"]) < 1e-5
    images = str(FIXTURES / "vit" / "outputs.npz")
    assert main(["classify", "--workdir", str(workdir), "--images", images]) in (0, None)
    assert list(map(int, capsys.readouterr().out.split())) == found.argmax(axis=1).tolist()


@pytest.mark.parametrize("name", MODELS + PAIRS)
def test_logits_equal_transformers(name):
    workdir, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    model, params = load_model(workdir)
    found = np.asarray(jax.jit(model.apply)({"params": params}, *inputs_of(name)))
    assert relative_difference(found[..., ours], outputs["logits"]) < 1e-5
    absent = sorted(set(range(found.shape[-1])) - set(ours.tolist()))
    assert len(absent) == len(trained.tokenizer.absent.split())
    assert (found[..., absent] < -9000).all()


def test_language_codes_are_words_of_no_text():
    translator = Translator.load(imported("nllb")[0])
    ids = translator.source_ids(PROMPT)
    assert translator.tokenizer.piece(ids[0]) == "eng_Latn"
    assert word_ids(translator, ids, PROMPT) == [-1, 0, 1, 2, -1]
    targets = translator.tokenizer.encode_target(PROMPT)
    assert word_ids(translator, targets, PROMPT) == [-1, 0, 1, 2]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("beam_size", "output"), [(1, "greedy"), (4, "beam")])
def test_searches_equal_transformers(name, beam_size, output):
    workdir, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    model, params = load_model(workdir)
    prompts = ours[outputs["prompts"]]
    settings = {"beam_size": beam_size, "constraints": (without_special,)}
    search = dataclasses.replace(trained.config.search, **settings)

    @jax.jit
    def run(params, prompts):
        variables, sizes = {"params": params}, {"num_beams": beam_size, "capacity": 20}
        cache = model.apply(variables, prompts, **sizes, method="start")
        length = prompts.shape[1] - 1
        _, cache = model.apply(variables, prompts, cache, length, method="prefill")
        lengths = np.full(len(prompts), LIMIT)
        state = search.start(cache, lengths, LIMIT, first_tokens=prompts[:, -1])
        state = search.advance(step_fn(model, params), state, LIMIT)
        return search.finalize(state).tokens[:, 0]

    expected = np.where(outputs[output] < 0, 0, ours[outputs[output]])
    np.testing.assert_array_equal(run(params, prompts), expected)


SEARCHES = [BeamSearch(beam_size=3), Sampling(num_samples=2), BeamSearch(beam_size=1)]


@pytest.mark.parametrize(
    ("name", "search"),
    by_profile(
        list(zip(["gpt2", "mistral"], SEARCHES, strict=False)),
        nightly=list(itertools.product(MODELS, SEARCHES)),
    ),
)
def test_prompts_of_other_lengths_are_generated_in_one_batch(name, search, monkeypatch):
    generator, batches = Generator.load(imported(name)[0], search=search), []
    prompts = ["the old house", "two books", "", "two books in the old house"]
    lengths = {len(generator.prompt_ids(prompt)) for prompt in prompts}
    alone = [generator.continuations([p], max_tokens=9, first=n)[0] for n, p in enumerate(prompts)]
    generate = Generator._generate

    def count(generator, rows, max_tokens):
        batches.append(rows)
        return generate(generator, rows, max_tokens)

    monkeypatch.setattr(Generator, "_generate", count)
    assert generator.continuations(prompts, max_tokens=9) == alone
    assert len(batches) == 1 < len(lengths)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("beam_size", "output"), [(1, "greedy"), (4, "beam")])
def test_translations_equal_transformers(name, beam_size, output):
    workdir, trained, outputs = imported(name)
    search = dataclasses.replace(trained.config.search, beam_size=beam_size, max_length=LIMIT)
    sources = [row[row > 0].tolist() for row in inputs_of(name)[0]]
    found = Translator.load(workdir, search=search).translate_ids(sources)
    for decoded, expected in zip(found, outputs[output], strict=True):
        expected = trained.tokenizer.our_ids[expected[expected >= 0]].tolist()
        assert decoded.tokens[0] == expected


@pytest.mark.parametrize("name", LANGUAGES)
def test_languages_begin_the_sides(name, tmp_path, capsys):
    folder, trained, outputs = imported(name)
    tokenizer, (source, target) = trained.tokenizer, LANGUAGES[name]
    assert [*tokenizer.encode(PROMPT), 1] == tokenizer.our_ids[outputs["text_ids"]].tolist()
    assert tokenizer.encode_batch([PROMPT, ""]) == [tokenizer.encode(PROMPT), []]
    start, *ids = tokenizer.encode_target(PROMPT)
    assert (target in tokenizer.piece(start), ids) == (True, tokenizer.encode(PROMPT)[1:])
    assert tokenizer.decode([2, start, *ids, 1]) == tokenizer.decode(ids)
    text, page = tmp_path / "in.txt", tmp_path / "page.html"
    text.write_text(f"{PROMPT}\n\n")
    options = ["--workdir", str(folder), "--beam-size", "1", "--max-length", str(LIMIT)]
    assert main(["translate", *options, "--input", str(text)]) in (0, None)
    assert capsys.readouterr().out == f"{outputs['text']}\n\n"
    assert main(["attention", *options, "--output", str(page), PROMPT]) in (0, None)
    assert target in page.read_text()
    command = ["import", "hf", str(FIXTURES / name), "--workdir", str(tmp_path / "run")]
    assert main(command) == 2
    assert "--source-language and --target-language for a model" in capsys.readouterr().err
    assert main([*command, "--source-language", source, "--target-language", f"{target}n"]) == 2
    assert "expected a language of the model, got" in capsys.readouterr().err
    assert main([*command, "--source-language", source]) == 2


def without_special(logits, context):
    return logits.at[:, :, np.array([0, 2, 3])].set(-np.inf)


# Exported as models with more options.
GENERAL = {"qwen2": "LlamaForCausalLM", "mt5": "T5ForConditionalGeneration"}


@pytest.mark.parametrize("name", GENERAL)
def test_an_export_may_be_a_more_general_model(name, tmp_path):
    workdir, trained, _ = imported(name)
    export_model("safetensors", workdir, tmp_path / "out")
    summary = import_huggingface(tmp_path / "out", tmp_path / "again")
    assert summary.startswith(f"{GENERAL[name]}, ")
    again = TrainedModel.load(tmp_path / "again").params
    jax.tree.map(np.testing.assert_array_equal, again, trained.params)


EXACT = [name for name in [*MODELS, *PAIRS, "vit"] if name not in [*GENERAL, "m2m100"]]
EXACT += [f"../bert/{name}" for name in ("masked", "pretraining", "classifier")]


@pytest.mark.parametrize("name", EXACT)
def test_an_export_is_the_imported_model_bit_for_bit(name, tmp_path):
    workdir, trained, _ = imported(name)
    export_model("safetensors", workdir, tmp_path / "out")
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    expected = {}
    for path in FIXTURES.joinpath(name).glob("*.safetensors"):
        expected |= safetensors.numpy.load_file(path)
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, strict=True)
    for path in FIXTURES.joinpath(name).glob("tokenizer.json"):
        assert (tmp_path / "out" / path.name).read_text() == path.read_text()
    # Its config.json describes the same model.
    fields, theirs = (
        json.loads((folder / "config.json").read_text())
        for folder in (tmp_path / "out", FIXTURES / name)
    )
    assert fields["architectures"] == theirs["architectures"]
    import_huggingface(tmp_path / "out", tmp_path / "again", LANGUAGES.get(name, ()))
    again = TrainedModel.load(tmp_path / "again")
    assert again.config.model == trained.config.model
    assert name == "vit" or again.tokenizer.sha256 == trained.tokenizer.sha256


BERT_PIECES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
TYPED = ["input_ids", "token_type_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("../bert/masked", {"model_max_length": 24, "model_input_names": TYPED, **BERT_PIECES}),
        ("gpt2", {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}),
        ("llama_grouped", {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}),
        ("t5", {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}),
        (
            "nllb",
            {"tokenizer_class": "NllbTokenizer", "src_lang": "eng_Latn", "tgt_lang": "deu_Latn"},
        ),
    ],
)
def test_an_export_has_the_settings_of_its_tokenizer(model, expected, tmp_path):
    """AutoTokenizer of transformers 5.24 encodes with them as we do (checked on 2026-11-28).

    GPT-2 of transformers would add embeddings of token types, and T5 would refuse them.
    """
    export_model("safetensors", imported(model)[0], tmp_path / "out")
    found = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    plain = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    expected = plain | expected
    assert {name: found.get(name) for name in expected} == expected
    assert ("bos_token" in found) == ("bos_token" in expected)
    import_huggingface(tmp_path / "out", tmp_path / "again", LANGUAGES.get(model, ()))


def test_an_export_has_the_pixels_of_its_pictures(tmp_path):
    export_model("safetensors", imported("vit")[0], tmp_path / "out")
    assert json.loads((tmp_path / "out" / "preprocessor_config.json").read_text()) == {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": 8, "width": 12},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    import_huggingface(tmp_path / "out", tmp_path / "again")


def test_the_command_line_imports_and_generates(tmp_path, capsys):
    workdir, outputs = str(tmp_path / "run"), imported("gpt2")[2]
    assert main(["import", "hf", str(FIXTURES / "gpt2"), "--workdir", workdir]) in (0, None)
    assert "run: GPT2LMHeadModel, 9,200 parameters, 99 tokens\n" in capsys.readouterr().out
    command = ["generate", "--workdir", workdir, "--prompt", PROMPT, "--tokens", str(LIMIT)]
    assert main([*command, "--beam-size", "1"]) in (0, None)
    assert capsys.readouterr().out == f"{PROMPT}{outputs['text']}\n"


def test_the_command_line_translates(tmp_path, capsys):
    """The source is plain text, such as a task's prefix."""
    folder, trained, outputs = imported("t5")
    workdir = str(folder)
    text, target, page = (str(tmp_path / name) for name in ("in.txt", "out.txt", "page.html"))
    pathlib.Path(text).write_text(f"{PROMPT}\n\n")
    options = ["--workdir", workdir, "--beam-size", "1", "--max-length", str(LIMIT)]
    assert main(["translate", *options, "--input", text, "--output", target]) in (0, None)
    assert pathlib.Path(target).read_text() == f"{outputs['text']}\n\n"
    pathlib.Path(target).write_text("a dog\n\n")
    command = ["score", "--workdir", workdir, "--source", text, "--target", target, "--json"]
    assert main(command) in (0, None)
    score = json.loads(capsys.readouterr().out.splitlines()[0])
    source, ids = ([*trained.tokenizer.encode(line), 1] for line in (PROMPT, "a dog"))
    model, params = load_model(folder)
    inputs = np.array([source]), np.array([[2, *ids[:-1]]])
    log_probs = jax.nn.log_softmax(jax.jit(model.apply)({"params": params}, *inputs))[0]
    expected = sum(np.asarray(log_probs)[i, token] for i, token in enumerate(ids))
    assert score["log_prob"] == pytest.approx(expected, abs=1e-4)
    assert main(["attention", *options, "--output", page, PROMPT]) in (0, None)
    assert r'"\u2581house"' in pathlib.Path(page).read_text()


@pytest.mark.parametrize("name", MODELS[:4])
def test_attention_weights_equal_transformers(name, tmp_path, capsys):
    """Of a text that is longer than the window of the model that has one."""
    (workdir, _, outputs), page = imported(name), tmp_path / "page.html"
    text = "the cat sees a small dog. a dog runs to the old house!"
    view = record_text(workdir, text)
    np.testing.assert_allclose(view.decoder, outputs["attentions"], atol=1e-6)
    assert "".join(view.target).removeprefix("<s>").replace("▁", " ").strip() == text
    assert (view.kinds, view.source) == (["decoder"], [])
    if name == "mistral":
        command = ["attention", "--workdir", str(workdir), text, "--output"]
        assert main([*command, str(page), "--figure", "3", "--word", "house"]) in (0, None)
        assert capsys.readouterr().out == f"{page}: {text}\n"
        assert '"figure":3' in page.read_text()
        assert "<dt>Text</dt>" in page.read_text()
        assert main([*command, str(tmp_path / "a.svg"), "--heads", "1,3"]) in (0, None)
        assert main([*command, str(page), "--beam-size", "2"]) == 2
        assert "a language model only reads the sentence: leave --beam-size" in (
            capsys.readouterr().err
        )
        assert main([*command, str(page), "--dtype", "int8"]) == 2
        assert "only reads the sentence: leave --dtype out" in capsys.readouterr().err


def test_scores_of_texts_are_sums_of_log_probabilities(tmp_path, capsys):
    workdir, trained, _ = imported("llama_grouped")
    texts = ["the old house", "", "a dog!"]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    command = ["score", "--workdir", str(workdir), "--target", str(tmp_path / "texts.txt")]
    assert main([*command, "--json"]) in (0, None)
    found = list(map(json.loads, capsys.readouterr().out.splitlines()))
    model, params = load_model(workdir)
    apply = jax.jit(lambda ids: jax.nn.log_softmax(model.apply({"params": params}, ids)))
    for text, result in zip(texts, found, strict=True):
        ids = trained.tokenizer.encode(text)
        assert result["length"] == len(ids)
        padded = np.pad([2, *ids], (0, 8 - len(ids)))[None]  # beginning of sentence first
        expected = sum(np.asarray(apply(padded))[0, i, token] for i, token in enumerate(ids))
        assert result["log_prob"] == pytest.approx(expected, abs=1e-4)
        assert result["score"] == pytest.approx(expected / max(1, len(ids)), abs=1e-4)
    assert main([*command, "--source", str(tmp_path / "texts.txt")]) == 2
    advice = "has a language model: give the texts as --target, without --source"
    assert advice in capsys.readouterr().err
    assert main(["score", *command[3:]]) == 2
    assert "has a model of sentence pairs: give --source, too" in capsys.readouterr().err
    assert main([*command, "--shortlist"]) == 2
    assert "scores lines on its own: leave --shortlist out" in capsys.readouterr().err


@pytest.mark.parametrize("name", [MODELS[1], PAIRS[2]])
def test_int8_is_close(name, tmp_path):
    workdir, trained, outputs = imported(name)
    before, after = quantize(workdir, tmp_path / "int8")
    assert after < before
    if name in PAIRS:
        assert Translator.load(tmp_path / "int8").translate([PROMPT])[0]
    else:
        search = dataclasses.replace(trained.config.search, beam_size=1)
        exact = Generator.load(workdir, search=search)
        assert exact.prompt_ids(PROMPT) == exact.tokenizer.our_ids[outputs["text_ids"]].tolist()
        assert exact.generate([PROMPT], max_tokens=LIMIT) == [str(outputs["text"])]
        rounded = Generator.load(tmp_path / "int8", search=search)
        assert rounded.generate([PROMPT], max_tokens=2)[0]
    model, params = load_model(tmp_path / "int8")
    found = np.asarray(jax.jit(model.apply)({"params": params}, *inputs_of(name)))
    found = found[..., trained.tokenizer.our_ids]
    assert np.corrcoef(found.ravel(), outputs["logits"].ravel())[0, 1] > 0.99


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["llama_grouped", "t5"], nightly=[*MODELS, *PAIRS]))
def test_fine_tuning_begins_with_the_model_on_every_mesh(name, tmp_path):
    workdir, trained, _ = imported(name)
    (tmp_path / "text.txt").write_text("the cat sees a small dog. the man reads two books!\n" * 20)
    data = jx.StreamConfig(file=str(tmp_path / "text.txt"), length=12, rows=8)
    if name in PAIRS:
        (tmp_path / "text.en").write_text("the cat\n" * 20)
        (tmp_path / "text.de").write_text("a dog sleep\n" * 20)
        file, sizes = str(tmp_path / "text"), {"tokens_per_batch": 96, "max_length": 12}
        data = jx.DataConfig(corpus="text", train=file, valid=file, batching="packing", **sizes)
    training = {"init_from": str(workdir), "steps": 1, "label_smoothing": 0.0}
    training = jx.TrainingConfig(**training, freeze="embedding")
    config = dataclasses.replace(trained.config, data=data, training=training)
    losses, states = [], []
    for mesh in (jx.MeshConfig(data=1, fsdp=1, tensor=8), jx.MeshConfig(data=2, fsdp=2, tensor=2)):
        sums = []
        own = dataclasses.replace(config, mesh=mesh)
        hooks = [lambda step, state, each, sums=sums: sums.append(each)]
        states.append(jax.device_get(train(own, tmp_path / str(mesh.data), hooks=hooks).params))
        losses.append(float(sums[0]["loss"] / sums[0]["count"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    np.testing.assert_array_equal(states[0]["embedding"], trained.params["embedding"])
    changed = jax.tree.map(
        lambda a, b: np.abs(a - b).max(), states[0]["decoder"], trained.params["decoder"]
    )
    assert min(jax.tree.leaves(changed)) > 0
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.ci
def test_the_page_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import_huggingface(FIXTURES / "gpt2", tmp_path / "runs" / "gpt2")
    (tmp_path / "mine.txt").write_text("the cat sees a small dog. the man reads two books!\n" * 60)
    names = pages.execute("hugging_face.md", "Fine-tuning")
    assert int(names["state"].step) == 2


def test_another_architecture_is_refused(tmp_path):
    config = imported("gpt2")[1].config
    (tmp_path / "text.txt").write_text("the cat sees a small dog.\n" * 20)
    data = jx.StreamConfig(file=str(tmp_path / "text.txt"), length=12, rows=8)
    training = jx.TrainingConfig(init_from=str(imported("llama_grouped")[0]), steps=1)
    with pytest.raises(UserError, match="expected a model of class GPT2Config, got LlamaConfig"):
        train(dataclasses.replace(config, data=data, training=training), tmp_path / "run")
