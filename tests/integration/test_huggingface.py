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
from typing import NamedTuple

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
from jaxformer.inference.windows import Windows
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
LIMIT = 16
PROMPT = "the old house"


class Imported(NamedTuple):
    workdir: pathlib.Path
    trained: TrainedModel
    outputs: dict[str, np.ndarray]  # of transformers


@functools.cache
def imported(name):
    folder = pathlib.Path(tempfile.mkdtemp())
    workdir = folder / "run"
    import_huggingface(FIXTURES / name, workdir, LANGUAGES.get(name, ()))
    outputs = dict(np.load(FIXTURES / name / "outputs.npz"))
    return Imported(workdir, TrainedModel.load(workdir), outputs)


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
    prompts = outputs["prompts"]
    sources = np.where(prompts == 0, 0, ours[prompts])
    return sources, tokens


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
    if name == "llama":
        fields["attention_dropout"] = 0.3
    (folder / "config.json").write_text(json.dumps(fields))

    summary = import_huggingface(folder, tmp_path / "run", LANGUAGES.get(name, ()))
    assert summary.splitlines()[1:] == [f"  {DROPOUT[name]}"]


def test_a_vit_equals_transformers(capsys):
    workdir, _, outputs = imported("vit")
    model, params = load_model(workdir)
    pixels = outputs["images"] / np.float32(127.5) - 1  # from -1 to 1

    found = np.asarray(jax.jit(model.apply)({"params": params}, pixels))  # [B, classes]
    assert relative_difference(found, outputs["logits"]) < 1e-5

    images = str(FIXTURES / "vit" / "outputs.npz")
    assert main(["classify", "--workdir", str(workdir), "--images", images]) in (0, None)
    printed = capsys.readouterr().out.split()
    assert [int(label) for label in printed] == found.argmax(axis=1).tolist()


@pytest.mark.parametrize("name", MODELS + PAIRS)
def test_logits_equal_transformers(name):
    workdir, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    model, params = load_model(workdir)

    found = np.asarray(jax.jit(model.apply)({"params": params}, *inputs_of(name)))  # [B, T, V]
    assert relative_difference(found[..., ours], outputs["logits"]) < 1e-5

    # Ids that only we have are impossible.
    absent = sorted(set(range(found.shape[-1])) - set(ours.tolist()))
    assert len(absent) == len(trained.tokenizer.absent.split())
    assert (found[..., absent] < -9000).all()


def test_language_codes_are_words_of_no_text():
    translator = Translator.load(imported("nllb").workdir)

    ids = translator.source_ids(PROMPT)
    assert translator.tokenizer.piece(ids[0]) == "eng_Latn"
    assert word_ids(translator, ids, PROMPT) == [-1, 0, 1, 2, -1]

    targets = translator.tokenizer.encode_target(PROMPT)
    assert word_ids(translator, targets, PROMPT) == [-1, 0, 1, 2]


def without_special(logits, context):
    return logits.at[:, :, np.array([0, 2, 3])].set(-np.inf)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("beam_size", "output"), [(1, "greedy"), (4, "beam")])
def test_searches_equal_transformers(name, beam_size, output):
    workdir, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    model, params = load_model(workdir)
    prompts = ours[outputs["prompts"]]  # [B, T]
    search = dataclasses.replace(
        trained.config.search,
        beam_size=beam_size,
        constraints=(without_special,),
    )

    @jax.jit
    def run(params, prompts):
        variables = {"params": params}
        cache = model.apply(variables, prompts, num_beams=beam_size, capacity=20, method="start")
        # The search itself reads the last token.
        length = prompts.shape[1] - 1
        _, cache = model.apply(variables, prompts, cache, length, method="prefill")

        lengths = np.full(len(prompts), LIMIT)
        state = search.start(cache, lengths, LIMIT, first_tokens=prompts[:, -1])
        state = search.advance(step_fn(model, params), state, LIMIT)
        return search.finalize(state).tokens[:, 0]

    theirs = outputs[output]
    expected = np.where(theirs < 0, 0, ours[theirs])
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
    generator = Generator.load(imported(name).workdir, search=search)
    prompts = ["the old house", "two books", "", "two books in the old house"]
    lengths = {len(generator.prompt_ids(prompt)) for prompt in prompts}
    assert len(lengths) > 1

    alone = []
    for number, prompt in enumerate(prompts):
        alone += generator.continuations([prompt], max_tokens=9, first=number)

    batches = []
    decode = Windows.decode

    def count(plan, decoder, items, shape):
        batches.append(items)
        return decode(plan, decoder, items, shape)

    monkeypatch.setattr(Windows, "decode", count)
    assert generator.continuations(prompts, max_tokens=9) == alone
    assert len(batches) == 1


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("beam_size", "output"), [(1, "greedy"), (4, "beam")])
def test_translations_equal_transformers(name, beam_size, output):
    workdir, trained, outputs = imported(name)
    ours = trained.tokenizer.our_ids
    search = dataclasses.replace(trained.config.search, beam_size=beam_size, max_length=LIMIT)
    sources, _ = inputs_of(name)
    without_padding = [row[row > 0].tolist() for row in sources]

    found = Translator.load(workdir, search=search).translate_ids(without_padding)
    for decoded, theirs in zip(found, outputs[output], strict=True):
        expected = ours[theirs[theirs >= 0]]
        assert decoded.tokens[0] == expected.tolist()


@pytest.mark.parametrize("name", LANGUAGES)
def test_languages_begin_the_sides(name):
    _, trained, outputs = imported(name)
    tokenizer = trained.tokenizer
    _, target = LANGUAGES[name]

    ids = tokenizer.encode(PROMPT)
    assert [*ids, 1] == tokenizer.our_ids[outputs["text_ids"]].tolist()
    assert tokenizer.encode_batch([PROMPT, ""]) == [ids, []]

    start, *target_ids = tokenizer.encode_target(PROMPT)
    assert target in tokenizer.piece(start)
    assert target_ids == ids[1:]
    assert tokenizer.decode([2, start, *target_ids, 1]) == tokenizer.decode(target_ids)


@pytest.mark.parametrize("name", LANGUAGES)
def test_commands_take_the_languages_of_the_import(name, tmp_path, capsys):
    workdir, _, outputs = imported(name)
    source, target = LANGUAGES[name]
    text = tmp_path / "in.txt"
    text.write_text(f"{PROMPT}\n\n")
    page = tmp_path / "page.html"

    options = ["--workdir", str(workdir), "--beam-size", "1", "--max-length", str(LIMIT)]
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
    original = FIXTURES / name
    out = tmp_path / "out"
    export_model("safetensors", workdir, out)

    found = safetensors.numpy.load_file(out / "model.safetensors")
    expected = {}
    for path in original.glob("*.safetensors"):
        expected |= safetensors.numpy.load_file(path)
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_array_equal(found[tensor], array, strict=True)

    for path in original.glob("tokenizer.json"):
        assert (out / path.name).read_text() == path.read_text()

    # Its config.json describes the same model.
    fields = json.loads((out / "config.json").read_text())
    theirs = json.loads((original / "config.json").read_text())
    assert fields["architectures"] == theirs["architectures"]

    import_huggingface(out, tmp_path / "again", LANGUAGES.get(name, ()))
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
    plain = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    expected = plain | expected

    export_model("safetensors", imported(model).workdir, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert {name: found.get(name) for name in expected} == expected
    assert ("bos_token" in found) == ("bos_token" in expected)

    import_huggingface(tmp_path / "out", tmp_path / "again", LANGUAGES.get(model, ()))


def test_an_export_has_the_pixels_of_its_pictures(tmp_path):
    export_model("safetensors", imported("vit").workdir, tmp_path / "out")

    found = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert found == {
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
    workdir = str(tmp_path / "run")
    expected = imported("gpt2").outputs["text"]

    assert main(["import", "hf", str(FIXTURES / "gpt2"), "--workdir", workdir]) in (0, None)
    assert "run: GPT2LMHeadModel, 9,200 parameters, 99 tokens\n" in capsys.readouterr().out

    command = ["generate", "--workdir", workdir, "--prompt", PROMPT, "--tokens", str(LIMIT)]
    assert main([*command, "--beam-size", "1"]) in (0, None)
    assert capsys.readouterr().out == f"{PROMPT}{expected}\n"


def test_the_command_line_translates(tmp_path):
    """The source is plain text, such as a task's prefix."""
    workdir, _, outputs = imported("t5")
    source = tmp_path / "in.txt"
    source.write_text(f"{PROMPT}\n\n")
    target = tmp_path / "out.txt"
    page = tmp_path / "page.html"

    options = ["--workdir", str(workdir), "--beam-size", "1", "--max-length", str(LIMIT)]
    command = ["translate", *options, "--input", str(source), "--output", str(target)]
    assert main(command) in (0, None)
    assert target.read_text() == f"{outputs['text']}\n\n"

    assert main(["attention", *options, "--output", str(page), PROMPT]) in (0, None)
    assert r'"\u2581house"' in page.read_text()


def test_the_command_line_scores_translations(tmp_path, capsys):
    workdir, trained, _ = imported("t5")
    source = tmp_path / "in.txt"
    source.write_text(f"{PROMPT}\n\n")
    target = tmp_path / "out.txt"
    target.write_text("a dog\n\n")
    files = ["--source", str(source), "--target", str(target)]
    assert main(["score", "--workdir", str(workdir), *files, "--json"]) in (0, None)
    score = json.loads(capsys.readouterr().out.splitlines()[0])

    # The score is the sum of the log probabilities of the target's tokens.
    model, params = load_model(workdir)
    source_ids = [*trained.tokenizer.encode(PROMPT), 1]
    target_ids = [*trained.tokenizer.encode("a dog"), 1]
    target_in = [2, *target_ids[:-1]]
    apply = jax.jit(model.apply)
    logits = apply({"params": params}, np.array([source_ids]), np.array([target_in]))
    [log_probs] = np.asarray(jax.nn.log_softmax(logits))  # [T, V]
    expected = sum(log_probs[i, token] for i, token in enumerate(target_ids))
    assert score["log_prob"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", MODELS[:4])
def test_attention_weights_equal_transformers(name, tmp_path, capsys):
    """Of a text that is longer than the window of the model that has one."""
    workdir, _, outputs = imported(name)
    text = "the cat sees a small dog. a dog runs to the old house!"
    view = record_text(workdir, text)

    np.testing.assert_allclose(view.decoder, outputs["attentions"], atol=1e-6)
    assert "".join(view.target).removeprefix("<s>").replace("▁", " ").strip() == text
    assert view.kinds == ["decoder"]
    assert view.source == []

    if name == "mistral":
        check_attention_command(workdir, text, tmp_path, capsys)


def check_attention_command(workdir, text, folder, capsys):
    page = folder / "page.html"
    command = ["attention", "--workdir", str(workdir), text, "--output"]

    assert main([*command, str(page), "--figure", "3", "--word", "house"]) in (0, None)
    assert capsys.readouterr().out == f"{page}: {text}\n"
    assert '"figure":3' in page.read_text()
    assert "<dt>Text</dt>" in page.read_text()
    assert main([*command, str(folder / "a.svg"), "--heads", "1,3"]) in (0, None)

    assert main([*command, str(page), "--beam-size", "2"]) == 2
    error = capsys.readouterr().err
    assert "a language model only reads the sentence: leave --beam-size" in error

    assert main([*command, str(page), "--dtype", "int8"]) == 2
    error = capsys.readouterr().err
    assert "only reads the sentence: leave --dtype out" in error


def test_scores_of_texts_are_sums_of_log_probabilities(tmp_path, capsys):
    workdir, trained, _ = imported("llama_grouped")
    texts = ["the old house", "", "a dog!"]
    target = tmp_path / "texts.txt"
    target.write_text("".join(f"{text}\n" for text in texts))
    command = ["score", "--workdir", str(workdir), "--target", str(target)]
    assert main([*command, "--json"]) in (0, None)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    model, params = load_model(workdir)

    @jax.jit
    def log_probs_of(ids):
        logits = model.apply({"params": params}, ids)
        return jax.nn.log_softmax(logits)

    for text, result in zip(texts, found, strict=True):
        ids = trained.tokenizer.encode(text)
        assert result["length"] == len(ids)

        padded = np.pad([2, *ids], (0, 8 - len(ids)))  # beginning of sentence first
        [log_probs] = np.asarray(log_probs_of(padded[None]))  # [T, V]
        expected = sum(log_probs[i, token] for i, token in enumerate(ids))
        assert result["log_prob"] == pytest.approx(expected, abs=1e-4)
        assert result["score"] == pytest.approx(expected / max(1, len(ids)), abs=1e-4)

    assert main([*command, "--source", str(target)]) == 2
    advice = "has a language model: give the texts as --target, without --source"
    assert advice in capsys.readouterr().err
    assert main(["score", "--target", str(target)]) == 2
    assert "has a model of sentence pairs: give --source, too" in capsys.readouterr().err
    assert main([*command, "--shortlist"]) == 2
    assert "scores lines on its own: leave --shortlist out" in capsys.readouterr().err


@pytest.mark.parametrize("name", [MODELS[1], PAIRS[2]])
def test_int8_is_close(name, tmp_path):
    workdir, trained, outputs = imported(name)
    int8 = tmp_path / "int8"
    before, after = quantize(workdir, int8)
    assert after < before

    if name in PAIRS:
        assert Translator.load(int8).translate([PROMPT])[0]
    else:
        search = dataclasses.replace(trained.config.search, beam_size=1)
        exact = Generator.load(workdir, search=search)
        assert exact.prompt_ids(PROMPT) == exact.tokenizer.our_ids[outputs["text_ids"]].tolist()
        assert exact.generate([PROMPT], max_tokens=LIMIT) == [str(outputs["text"])]
        rounded = Generator.load(int8, search=search)
        assert rounded.generate([PROMPT], max_tokens=2)[0]

    model, params = load_model(int8)
    found = np.asarray(jax.jit(model.apply)({"params": params}, *inputs_of(name)))
    found = found[..., trained.tokenizer.our_ids]  # [B, T, V]
    correlation = np.corrcoef(found.ravel(), outputs["logits"].ravel())[0, 1]
    assert correlation > 0.99


def text_data(folder):
    (folder / "text.txt").write_text("the cat sees a small dog. the man reads two books!\n" * 20)
    return jx.StreamConfig(file=str(folder / "text.txt"), length=12, rows=8)


def pairs_data(folder):
    (folder / "text.en").write_text("the cat\n" * 20)
    (folder / "text.de").write_text("a dog sleep\n" * 20)
    return jx.DataConfig(
        corpus="text",
        train=str(folder / "text"),
        valid=str(folder / "text"),
        batching="packing",
        tokens_per_batch=96,
        max_length=12,
    )


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["llama_grouped"], nightly=[*MODELS, *PAIRS]))
def test_fine_tuning_begins_with_the_model_on_every_mesh(name, tmp_path):
    workdir, trained, _ = imported(name)
    data = pairs_data(tmp_path) if name in PAIRS else text_data(tmp_path)
    training = jx.TrainingConfig(
        init_from=str(workdir),
        steps=1,
        label_smoothing=0.0,
        freeze="embedding",
    )
    config = dataclasses.replace(trained.config, data=data, training=training)

    def train_on(mesh):
        """Returns the loss of the first step, and the parameters after it."""
        sums = []

        def keep_sums(step, state, each):
            sums.append(each)

        own = dataclasses.replace(config, mesh=mesh)
        state = train(own, tmp_path / str(mesh.data), hooks=[keep_sums])
        loss = float(sums[0]["loss"] / sums[0]["count"])
        return loss, jax.device_get(state.params)

    loss, params = train_on(jx.MeshConfig(data=1, fsdp=1, tensor=8))
    same_loss, same_params = train_on(jx.MeshConfig(data=2, fsdp=2, tensor=2))

    assert loss == pytest.approx(same_loss, rel=1e-5)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(same_params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    def largest_change(before, after):
        return np.abs(after - before).max()

    np.testing.assert_array_equal(params["embedding"], trained.params["embedding"])
    changes = jax.tree.map(largest_change, trained.params["decoder"], params["decoder"])
    assert min(jax.tree.leaves(changes)) > 0


@pytest.mark.ci
def test_the_page_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import_huggingface(FIXTURES / "gpt2", tmp_path / "runs" / "gpt2")
    (tmp_path / "mine.txt").write_text("the cat sees a small dog. the man reads two books!\n" * 60)

    names = pages.execute("hugging_face.md", "Fine-tuning")
    assert int(names["state"].step) == 2


def test_another_architecture_is_refused(tmp_path):
    training = jx.TrainingConfig(init_from=str(imported("llama_grouped").workdir), steps=1)
    config = dataclasses.replace(
        imported("gpt2").trained.config,
        data=text_data(tmp_path),
        training=training,
    )
    with pytest.raises(UserError, match="expected a model of class GPT2Config, got LlamaConfig"):
        train(config, tmp_path / "run")
