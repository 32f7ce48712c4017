"""Encoder-decoders of Hugging Face against transformers: logits, searches, training, the way back.

The fixtures are made by ``tests/fixtures/make_pairs.py``.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

import jaxformer as jx
from jaxformer import Translator, load_model, quantize, record_attention, score_pairs
from jaxformer.cli import main
from jaxformer.experiment import make_task, train
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface
from jaxformer.runs.workdir import Workdir
from jaxformer.training.placement import BatchShards

from ..fixtures.random_weights import read_arrays
from ..profiles import by_profile
from .families import imported, relative_difference, write_model

pytest.importorskip("tokenizers")

PAIRS = [
    "bart",
    "bart_wide",
    "mbart",
    "mbart_50",
    "pegasus",
    "pegasus_wide",
    "blenderbot",
    "blenderbot_wide",
    "blenderbot_small",
    "blenderbot_small_wide",
    "bert2bert",
    "bert2bert_wide",
    "flan_t5",
    "madlad",
    "longt5",
    "longt5_blocks",
]
# Together, they have every rule for the beginning of an output.
SEARCHED = by_profile(
    ["bart", "mbart", "mbart_50", "pegasus", "blenderbot_small", "bert2bert", "longt5_blocks"],
    nightly=PAIRS,
)
LANGUAGES = {"mbart": ("en_XX", "de_DE"), "mbart_50": ("en_XX", "de_DE")}
SUPPRESSED = np.array([5, 8, 13, 21, 34, 55, 89])  # in the numbers of transformers
BOS = 2
EOS = 1
PROMPT = "the old house"
LIMIT = 16


def family(name):
    return imported(name, LANGUAGES.get(name, ()))


def our_sources(name):
    """Returns the sources of the searches, in our numbers, padded with 0."""
    _, _, trained, outputs = family(name)
    prompts = outputs["prompts"]
    pad = trained.tokenizer.special["pad"]
    return np.where(prompts == pad, 0, trained.tokenizer.our_ids[prompts])


def logits_of(name, workdir=None):
    _, own_workdir, trained, outputs = family(name)
    tokens = trained.tokenizer.our_ids[outputs["tokens"]]
    tokens[:, 0] = BOS  # Our beginning of sentence may be a token with another role there.
    model, params = load_model(workdir or own_workdir)
    sources = our_sources(name)[: len(tokens)]
    return np.asarray(jax.jit(model.apply)({"params": params}, sources, tokens))


@pytest.mark.parametrize("name", PAIRS)
def test_logits_equal_transformers(name):
    _, _, trained, outputs = family(name)
    ours = trained.tokenizer.our_ids
    found = logits_of(name)  # [B, T, V]
    assert relative_difference(found[..., ours], outputs["logits"]) < 1e-5

    # Ids that only we have are impossible.
    absent = sorted(set(range(found.shape[-1])) - set(ours.tolist()))
    assert len(absent) == len(trained.tokenizer.absent.split())
    assert (found[..., absent] < -9000).all()


def translator_of(name, beam_size):
    _, workdir, trained, _ = family(name)
    search = dataclasses.replace(trained.config.search, beam_size=beam_size, max_length=LIMIT)
    return Translator.load(workdir, search=search)


def searched(name, beam_size, **options):
    """Returns all sources without padding, the translator, and its hypotheses."""
    sources = []
    for row in our_sources(name):
        is_token = row > 0
        sources.append(row[is_token].tolist())

    translator = translator_of(name, beam_size)
    return sources, translator, translator.translate_ids(sources, **options)


def best_ids(found):
    return [decoded.tokens[0] for decoded in found]


def expected_ids(name, output):
    return in_our_numbers(name, family(name).outputs[output])


def in_our_numbers(name, rows):
    """Returns outputs of transformers, which are padded with -1, in our numbers."""
    our_ids = family(name).trained.tokenizer.our_ids
    expected = []
    for row in rows:
        theirs = row[row >= 0]
        expected.append(our_ids[theirs].tolist())
    return expected


@pytest.mark.parametrize("name", SEARCHED)
def test_greedy_search_equals_transformers(name):
    _, _, found = searched(name, beam_size=1)
    assert best_ids(found) == expected_ids(name, "greedy")


@pytest.mark.parametrize("name", SEARCHED)
def test_beam_search_equals_transformers(name):
    """Log probabilities, too, are the same with a cache and in one pass over the whole output.

    An end that is forced at the limit, and a first token that a search is given, cost nothing in
    the search.
    """
    sources, translator, found = searched(name, beam_size=4)
    assert best_ids(found) == expected_ids(name, "beam")

    pairs = list(zip(sources, best_ids(found), strict=True))
    whole = np.array([score.log_prob for score in score_pairs(translator, pairs)])
    cached = np.array([decoded.log_probs[0] for decoded in found])
    lengths = np.array([len(tokens) for tokens in best_ids(found)])
    is_free = (lengths == LIMIT) & (translator.config.search.unfinished == "end")
    if translator.tokenizer.target_start:
        is_free[:] = True
    assert (whole <= cached + 1e-4).all()
    np.testing.assert_allclose(cached[~is_free], whole[~is_free], atol=1e-4)


@pytest.mark.parametrize("name", by_profile(["bart", "mbart_50"], nightly=PAIRS))
@pytest.mark.parametrize("number", [0, 1])
def test_settings_of_generate_are_the_search_of_the_workdir(name, number, tmp_path):
    """Sizes of the search, its limits, and the end that is forced at the limit."""
    folder = write_model(name, tmp_path / "theirs")
    outputs = family(name).outputs
    (folder / "generation_config.json").write_text(str(outputs["settings"][number]))

    workdir = tmp_path / "run"
    summary = import_huggingface(folder, workdir, LANGUAGES.get(name, ()))
    assert "not used" not in summary
    sources = [row[row > 0].tolist() for row in our_sources(name)]
    found = Translator.load(workdir).translate_ids(sources)
    assert best_ids(found) == in_our_numbers(name, outputs["configured"][number])

    # An export has the same settings.
    export_model("safetensors", workdir, tmp_path / "out")
    import_huggingface(tmp_path / "out", tmp_path / "again", LANGUAGES.get(name, ()))
    again = TrainedModel.load(tmp_path / "again")
    assert again.config.search == TrainedModel.load(workdir).config.search


@pytest.mark.parametrize("name", by_profile(["bart", "mbart"], nightly=PAIRS))
def test_suppressed_tokens_equal_transformers(name):
    tokenizer = family(name).trained.tokenizer
    suppressed = tokenizer.our_ids[SUPPRESSED]

    def suppress(tokens, logits, context):
        return logits.at[:, :, tokens].set(-np.inf)

    constraint = jax.tree_util.Partial(suppress, suppressed)
    _, _, found = searched(name, beam_size=4, constraints=[constraint])
    assert best_ids(found) == expected_ids(name, "suppressed")


@pytest.mark.parametrize("name", by_profile(["mbart_50", "pegasus"], nightly=PAIRS))
def test_forced_prefixes_equal_transformers(name):
    tokenizer = family(name).trained.tokenizer
    outputs = family(name).outputs
    prefix = tokenizer.our_ids[outputs["prefix"]].tolist()
    sources = our_sources(name)

    _, _, found = searched(name, beam_size=1, prefixes=[prefix] * len(sources))
    for decoded, continued in zip(best_ids(found), expected_ids(name, "continued"), strict=True):
        assert decoded == continued  # which begins with the prefix


@pytest.mark.parametrize("name", by_profile(["bart", "mbart_50", "bert2bert"], nightly=PAIRS))
def test_commands_translate_text(name, tmp_path, capsys):
    _, workdir, trained, outputs = family(name)
    tokenizer = trained.tokenizer
    [words] = tokenizer.encode_batch([PROMPT])
    ids = [*words, tokenizer.source_end]
    assert ids == tokenizer.our_ids[outputs["text_ids"]].tolist()

    text = tmp_path / "in.txt"
    text.write_text(f"{PROMPT}\n\n")
    options = ["--workdir", str(workdir), "--beam-size", "1", "--max-length", str(LIMIT)]
    assert main(["translate", *options, "--input", str(text)]) in (0, None)
    assert capsys.readouterr().out == f"{outputs['text']}\n\n"


def test_attention_is_of_sources_with_codes():
    """The source has the code of its language after its end."""
    view = record_attention(translator_of("mbart", beam_size=1), PROMPT)
    assert view.source[-2:] == ["</s>", "en_XX"]
    assert np.shape(view.cross)[-1] == len(view.source)
    assert view.target[0] == "<s>"  # which is the code of the target


@pytest.mark.parametrize("name", PAIRS)
def test_an_export_is_the_imported_model_bit_for_bit(name, tmp_path):
    folder, workdir, trained, _ = family(name)
    out = tmp_path / "out"
    export_model("safetensors", workdir, out)

    found = safetensors.numpy.load_file(out / "model.safetensors")
    expected = {
        tensor: array
        for tensor, array in read_arrays(folder).items()
        if not tensor.startswith("encoder.pooler.")  # whose output is not used
    }
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        begin = 0
        if "embed_positions" in tensor and "bart" in name:
            begin = 2  # No token reads the rows before it.
            assert not found[tensor][:begin].any()
        np.testing.assert_array_equal(found[tensor][begin:], array[begin:], strict=True)

    # Its config.json describes the same model.
    theirs = json.loads((folder / "config.json").read_text())
    fields = json.loads((out / "config.json").read_text())
    for field in ("model_type", "architectures", "pad_token_id"):
        assert fields[field] == theirs[field]

    import_huggingface(out, tmp_path / "again", LANGUAGES.get(name, ()))
    again = TrainedModel.load(tmp_path / "again")
    assert again.config.model == trained.config.model
    assert again.tokenizer.sha256 == trained.tokenizer.sha256
    jax.tree.map(np.testing.assert_array_equal, again.params, trained.params)


@pytest.mark.parametrize("name", by_profile(["bart", "longt5_blocks"], nightly=PAIRS))
def test_int8_is_close(name, tmp_path):
    _, workdir, trained, outputs = family(name)
    int8 = tmp_path / "int8"
    before, after = quantize(workdir, int8)
    assert after < before

    found = logits_of(name, int8)[..., trained.tokenizer.our_ids]
    correlation = np.corrcoef(found.ravel(), outputs["logits"].ravel())[0, 1]
    assert correlation > 0.99


def pairs_data(folder):
    (folder / "text.en").write_text("the cat\n" * 20)
    (folder / "text.de").write_text("a dog sleep\n" * 20)
    return jx.DataConfig(
        corpus="text",
        train=str(folder / "text"),
        valid=str(folder / "text"),
        batching="packing",
        tokens_per_batch=96,
        max_length=24,
    )


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(["bart"], nightly=PAIRS))
def test_fine_tuning_begins_with_the_model_on_every_mesh(name, tmp_path):
    """With gradients of all layers, and packed pairs."""
    _, workdir, trained, _ = family(name)
    training = jx.TrainingConfig(init_from=str(workdir), steps=1, label_smoothing=0.0)
    config = dataclasses.replace(trained.config, data=pairs_data(tmp_path), training=training)

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

    changes = jax.tree.map(largest_change, trained.params, params)
    assert min(jax.tree.leaves(changes)) > 0


def test_sources_of_a_batch_end_with_the_code_of_their_language(tmp_path):
    """As MBartTokenizer of transformers encodes them, also where rows have several pairs."""
    _, workdir, trained, _ = family("mbart")
    training = jx.TrainingConfig(init_from=str(workdir), steps=1)
    config = dataclasses.replace(trained.config, data=pairs_data(tmp_path), training=training)
    task = make_task(config, Workdir(tmp_path / "run"))
    one_shard = BatchShards(row_multiple=1, local_shards=(0,), shard_count=1)
    batch = next(iter(task.batches(0, one_shard)))

    # The second pair of the first row.
    in_source = batch.src_segments[0] == 2
    in_target = batch.tgt_segments[0] == 2
    source = [trained.tokenizer.piece(token) for token in batch.src[0, in_source]]
    target = batch.tgt_out[0, in_target]

    *words, end, code = source
    assert "".join(words) == "▁the▁cat"
    assert end == "</s>"
    assert code == "en_XX"
    assert batch.tgt_in[0, 0] == BOS  # the code of the target
    assert target[-1] == EOS
    assert list(target).count(EOS) == 1
