"""Imported encoders that followed BERT against transformers.

The fixtures are made by ``tests/fixtures/make_encoders.py``.
"""

import dataclasses
import functools
import json
import re

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxformer import Config, LabeledConfig, MeshConfig, TrainingConfig, load_model, train
from jaxformer.errors import UserError
from jaxformer.inference.attention_view import record_text
from jaxformer.inference.conversions import quantize
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.export import export_model
from jaxformer.interop.huggingface.importer import import_huggingface, known_layouts
from jaxformer.nn.embedding import output_logits

from ..profiles import by_profile
from .families import imported, write_model

pytest.importorskip("tokenizers")

TEXTS = [
    ("the old house",),
    ("a dog runs!",),
    ("two books",),
    ("the man sees", "a cat"),
    ("", "dog"),
    ("he has it", "the house is red."),
]
LONG_TEXTS = [
    ("the old house",),
    ("a dog runs! " * 6,),
    ("two books and a cat " * 3,),
    ("the man sees", "a cat " * 12),
    ("", "dog"),
    ("he has it " * 5, "the house is red."),
]
NAMES = [
    "albert_choices",
    "albert_classes",
    "albert_masked",
    "albert_pretraining",
    "big_bird_choices",
    "big_bird_classes",
    "big_bird_masked",
    "big_bird_pretraining",
    "distilbert_choices",
    "distilbert_classes",
    "distilbert_masked",
    "electra_choices",
    "electra_classes",
    "electra_masked",
    "electra_replaced",
    "longformer_classes",
    "longformer_masked",
    "longformer_plain",
    "roberta_choices",
    "roberta_classes",
    "roberta_masked",
    "roberta_plain",
    "roberta_prelayernorm_classes",
    "roberta_prelayernorm_masked",
    "roberta_score",
    "roformer_classes",
    "roformer_masked",
    "roformer_score",
    "xlm_roberta_classes",
    "xlm_roberta_masked",
]
SOME = ["roberta_classes", "albert_classes", "longformer_classes", "big_bird_classes"]
# Heads without a part in the loss below.
UNUSED = {
    "albert_pretraining": ("pooler", "next"),
    "big_bird_pretraining": ("pooler", "next"),
    "big_bird_masked": ("pooler",),
}
MASKED = [name for name in NAMES if name.endswith("masked")]


def texts_of(trained):
    """Returns the rows of a fixture."""
    is_long = trained.config.model.block_size is not None
    return LONG_TEXTS if is_long else TEXTS


def token_types(trained, shape):
    """Returns the type of each token of the fixtures' rows."""
    types = np.zeros(shape, np.int32)
    for row, texts in zip(types, texts_of(trained), strict=True):
        if len(texts) == 2:
            _, own = trained.tokenizer.encode_pair(*texts)
            row[: len(own)] = own

    last_type = max(trained.config.model.num_token_types - 1, 0)
    return np.minimum(types, last_type)


def outputs_of(model, params, tokens, types):
    """Returns our outputs, by their names in the fixtures."""
    own = model.config

    @jax.jit
    def run(params, tokens, types):
        def call(module):
            features = module.features(tokens, token_types=types)
            found = {"features": features}
            if "masked" in own.heads:
                found["token_logits"] = module.token_logits(tokens, token_types=types)
            if "next" in own.heads:
                found["next"] = module.next_logits(tokens, token_types=types)
            if "replaced" in own.heads:
                found["replaced"] = module.replaced_logits(tokens, token_types=types)
            if "score" in own.heads:
                found["scores"] = module.scores(tokens, token_types=types)
            elif "choice" in own.heads:
                pairs = (3, 2, tokens.shape[1])
                choices = tokens.reshape(pairs)
                found["choices"] = module.choice_logits(choices, token_types=types.reshape(pairs))
            elif own.num_classes:
                found["classes"] = module(tokens, token_types=types)
            elif "pooler" in own.heads:
                found["pooled"] = module.pool(features, tokens)
            return found

        return model.apply({"params": params}, method=call)

    return jax.device_get(run(params, tokens, types))


@pytest.mark.parametrize("name", NAMES)
def test_outputs_equal_transformers(name):
    family = imported(name)
    model, params = load_model(family.workdir)
    tokenizer = family.trained.tokenizer
    tokens = tokenizer.our_ids[family.outputs["tokens"]]
    for row, texts in zip(tokens, texts_of(family.trained), strict=True):
        if len(texts) == 2:
            ids, _ = tokenizer.encode_pair(*texts)
        else:
            ids = tokenizer.encode_prompt(*texts)
        assert row[row != 0].tolist() == ids

    found = outputs_of(model, params, tokens, token_types(family.trained, tokens.shape))
    if "token_logits" in found:
        found["token_logits"] = found["token_logits"][..., tokenizer.our_ids]

    compared = set(found) & set(family.outputs)
    assert compared == family.outputs.keys() - {"tokens"}
    for output in compared:
        expected = family.outputs[output]
        difference = np.abs(found[output] - expected)
        if difference.shape[:2] == tokens.shape:
            difference = difference[tokens != 0]  # padding has no meaning
        relative = difference.max() / expected.std()
        assert relative < 1e-5, output


def test_a_text_alone_has_the_features_that_it_has_in_a_batch():
    for name in SOME:
        family = imported(name)
        model, params = load_model(family.workdir)
        tokens = family.trained.tokenizer.our_ids[family.outputs["tokens"]]
        row = 1
        length = (tokens[row] != 0).sum()

        features = jax.jit(functools.partial(model.apply, method="features"))
        alone = features({"params": params}, tokens[row : row + 1, :length])
        difference = np.abs(alone[0] - family.outputs["features"][row, :length])
        assert difference.max() < 1e-5 * family.outputs["features"].std()


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_import_bit_for_bit(name, tmp_path):
    family = imported(name)
    export_model("safetensors", family.workdir, tmp_path / "out")

    theirs = json.loads((family.folder / "config.json").read_text())
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    layout = known_layouts()[theirs["model_type"]]
    notes = "initializer_range|label2id|transformers_version|use_cache"
    of_other_heads = "qa_dropout|sep_token_id|summary_.*"
    ignored = f"{notes}|{of_other_heads}|{layout.ignored}"
    in_tokenizer = [layout.special.get(token) for token in layout.special_tokens]
    for field, value in theirs.items():
        if field not in in_tokenizer and not re.fullmatch(ignored, field):
            assert ours.get(field) == value, field

    expected = safetensors.numpy.load_file(family.folder / "model.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    for name in layout.unread(family.trained.config.model):
        expected.pop(f"{layout.prefix}{name}", None)
    assert found.keys() == expected.keys()
    for tensor, array in expected.items():
        if tensor.endswith("position_embeddings.weight") and theirs["pad_token_id"] == 1:
            array[:2] = 0  # rows that no token reads
        np.testing.assert_array_equal(found[tensor], array, err_msg=tensor)


@pytest.mark.parametrize("name", by_profile(SOME, nightly=NAMES))
def test_all_parameters_learn(name):
    """Gradients are finite, and zero only where they are in truth: of the biases of keys."""
    family = imported(name)
    model, params = load_model(family.workdir)
    tokens = family.trained.tokenizer.our_ids[family.outputs["tokens"]]
    types = token_types(family.trained, tokens.shape)
    own = model.config

    def loss(params, key):
        def call(module):
            rates = {"deterministic": False, "token_types": types}
            if own.num_classes:
                outputs = module(tokens, **rates)
            elif "score" in own.heads:
                outputs = module.scores(tokens, **rates)
            elif "choice" in own.heads:
                pairs = (3, 2, tokens.shape[1])
                rates["token_types"] = types.reshape(pairs)
                outputs = module.choice_logits(tokens.reshape(pairs), **rates)
            elif "masked" in own.heads:
                x = module.transform(module.features(tokens, **rates))
                outputs = output_logits(x, *module.output_projection())
            elif "replaced" in own.heads:
                outputs = module.replaced_logits(tokens, token_types=types)
            else:
                outputs = module.pool(module.features(tokens, **rates), tokens)
            return jnp.square(outputs - 1).mean()

        return model.apply({"params": params}, method=call, rngs={"dropout": key})

    loss_and_gradient = jax.jit(jax.value_and_grad(loss))
    before, gradient = jax.device_get(loss_and_gradient(params, jax.random.key(0)))
    leaves = jax.tree.leaves(gradient)
    norm = np.sqrt(sum(np.square(leaf).sum() for leaf in leaves))
    stepped = jax.tree.map(lambda leaf, change: leaf - 1e-2 * change / norm, params, gradient)
    after, _ = loss_and_gradient(stepped, jax.random.key(0))
    assert np.isfinite(before)
    assert after < before

    for path, leaf in flax.traverse_util.flatten_dict(gradient, sep="/").items():
        assert np.isfinite(leaf).all()

        is_of_keys = path.endswith(("key_bias", "key_global_bias"))
        is_of_other_head = path.startswith(UNUSED.get(name, ()))
        assert is_of_keys or is_of_other_head or np.abs(leaf).max() > 1e-6, path


@pytest.mark.parametrize("name", by_profile(SOME[:2], nightly=[n for n in NAMES if "classes" in n]))
def test_int8_and_bfloat16_are_close(name, tmp_path):
    family = imported(name)
    tokens = family.trained.tokenizer.our_ids[family.outputs["tokens"]]
    types = token_types(family.trained, tokens.shape)
    quantize(family.workdir, tmp_path / "int8")

    for workdir, dtype in ((tmp_path / "int8", None), (family.workdir, "bfloat16")):
        trained = TrainedModel.load(workdir, compute_dtype=dtype)
        model = trained.config.kind.build(trained.config.model)
        found = jax.jit(model.apply)({"params": trained.params}, tokens, token_types=types)
        expected = family.outputs["classes"]
        difference = np.abs(np.asarray(found, np.float32) - expected)
        assert difference.max() < 0.3 * expected.std()


@pytest.mark.ci
@pytest.mark.parametrize("name", by_profile(MASKED[:1], nightly=MASKED))
def test_a_classifier_trains_on_every_mesh(name, tmp_path):
    """The fine-tuned model has a new head, whose activation is the family's."""
    family = imported(name)
    lines = [f"{number % 2} {TEXTS[number % 3][0]}\n" for number in range(16)]
    (tmp_path / "labeled").write_text("".join(lines))
    labeled = str(tmp_path / "labeled")

    config = Config(
        model=dataclasses.replace(family.trained.config.model, num_classes=2, heads="pooler"),
        data=LabeledConfig(train=labeled, valid=labeled, tokens_per_batch=128, max_length=16),
        training=TrainingConfig(
            init_from=str(family.workdir),
            steps=1,
            label_smoothing=0.0,
            learning_rate=1e-3,
            eval_every=1,
            checkpoint_every=1,
        ),
    )

    def train_on(mesh, run):
        state = train(dataclasses.replace(config, mesh=mesh), run)
        return jax.device_get(state.params)

    params = train_on(MeshConfig(data=1, fsdp=1, tensor=8), tmp_path / "run")
    same = train_on(MeshConfig(data=2, fsdp=2, tensor=2), tmp_path / "other")
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    difference = np.abs(params["embedding"] - family.trained.params["embedding"]).max()
    assert 0 < difference < 1.1e-3

    export_model("safetensors", tmp_path / "run", tmp_path / "out")
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported["architectures"][0].endswith("ForSequenceClassification")
    import_huggingface(tmp_path / "out", tmp_path / "again")
    again = TrainedModel.load(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, again.params, params)


@pytest.mark.parametrize("name", MASKED)
def test_the_mask_is_the_tokenizers(name):
    tokenizer = imported(name).trained.tokenizer
    expected = "<mask>" if "roberta" in name or "longformer" in name else "[MASK]"
    assert tokenizer.piece(tokenizer.mask_token) == expected


def changed_model(name, folder, tensors=None, without=(), **fields):
    """Writes a model of the fixtures with other fields, further tensors, or fewer."""
    write_model(name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))

    arrays = safetensors.numpy.load_file(folder / "model.safetensors")
    arrays = {tensor: array for tensor, array in arrays.items() if tensor not in without}
    safetensors.numpy.save_file({**arrays, **(tensors or {})}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("roformer_classes", {"roformer.encoder.embed_positions.weight": np.ones((26, 8))}),
        ("roberta_classes", {"roberta.embeddings.position_ids": np.ones((1, 26))}),
        # Of transformers 3, whose classifier did not read it either.
        (
            "roberta_classes",
            {
                "roberta.pooler.dense.weight": np.ones((16, 16)),
                "roberta.pooler.dense.bias": np.ones(16),
            },
        ),
    ],
)
def test_tensors_that_no_model_reads_are_ignored(name, tensors, tmp_path):
    import_huggingface(changed_model(name, tmp_path / "old", tensors), tmp_path / "run")

    found = TrainedModel.load(tmp_path / "run").params
    jax.tree.map(np.testing.assert_array_equal, found, imported(name).trained.params)


def test_copies_are_compared(tmp_path):
    arrays = safetensors.numpy.load_file(imported("roberta_masked").folder / "model.safetensors")
    table = arrays["roberta.embeddings.word_embeddings.weight"]
    bias = arrays["lm_head.bias"]

    tied = {"lm_head.decoder.weight": table, "lm_head.decoder.bias": bias}
    import_huggingface(changed_model("roberta_masked", tmp_path / "tied", tied), tmp_path / "run")

    untied = {"lm_head.decoder.weight": table + 1}
    folder = changed_model("roberta_masked", tmp_path / "untied", untied)
    with pytest.raises(UserError, match=r"expected lm_head\.decoder\.weight to be the same as"):
        import_huggingface(folder, tmp_path / "other")


REFUSED = [
    ("roberta_masked", {"is_decoder": True}, "expected is_decoder to be False: got True"),
    ("electra_masked", {"add_cross_attention": True}, "expected add_cross_attention to be False"),
    (
        "roberta_masked",
        {"position_embedding_type": "relative_key"},
        "expected position_embedding_type to be 'absolute': got 'relative_key'",
    ),
    ("albert_masked", {"position_embedding_type": "relative_key_query"}, "to be 'absolute': got"),
    ("roberta_masked", {"pad_token_id": 0}, "expected pad_token_id to be 1: got 0"),
    ("roberta_masked", {"hidden_act": "relu"}, "expected hidden_act to be 'gelu': got 'relu'"),
    (
        "distilbert_masked",
        {"activation": "mish"},
        "activation to be gelu or .*: got 'mish'",
    ),
    ("roberta_masked", {"adapter_size": 8}, "does not know adapter_size=8"),
    ("roformer_masked", {"rotary_value": True}, "expected rotary_value to be False: got True"),
    ("albert_masked", {"inner_group_num": 2}, "expected inner_group_num to be 1: got 2"),
    ("albert_pretraining", {"num_hidden_groups": 3}, "layer_groups must divide .*=4: got 3; use 2"),
    ("distilbert_masked", {"tie_word_embeddings": False}, "tie_word_embeddings to be True: got"),
    (
        "longformer_masked",
        {"attention_window": [6, 6, 8]},
        r"expected attention_window to be one even number for all layers: got \[6, 6, 8\]",
    ),
    (
        "big_bird_masked",
        {"attention_type": "itc"},
        "to be block_sparse or original_full: got 'itc'",
    ),
    ("big_bird_masked", {"use_bias": False}, "expected use_bias to be True: got False"),
    ("big_bird_classes", {"rescale_embeddings": True}, "rescale_embeddings to be False: got True"),
    ("longformer_masked", {"attention_window": 5}, "one even number for all layers: got 5"),
    (
        "electra_classes",
        {"architectures": ["ElectraForCausalLM"]},
        "a head that jaxformer has, ForMaskedLM, .*, ForPreTraining: got ElectraForCausalLM",
    ),
    ("electra_choices", {"summary_type": "mean"}, "summary_type to be 'first': got 'mean'"),
    # Its first layer has no names of its own in config.json.
    (
        "roformer_classes",
        {"architectures": ["RoFormerForMultipleChoice"]},
        "a head that jaxformer has, .*: got RoFormerForMultipleChoice",
    ),
    (
        "longformer_plain",
        {"architectures": ["LongformerForMultipleChoice"]},
        "has, ForMaskedLM, ForSequenceClassification: got LongformerForMultipleChoice",
    ),
    (
        "big_bird_masked",
        {"architectures": ["BigBirdForQuestionAnswering"]},
        "a head that jaxformer has, .*: got BigBirdForQuestionAnswering",
    ),
    # Their global tokens are the question, or none.
    (
        "longformer_plain",
        {"architectures": ["LongformerForQuestionAnswering"]},
        "has, ForMaskedLM, ForSequenceClassification: got LongformerForQuestionAnswering",
    ),
    (
        "longformer_plain",
        {"architectures": ["LongformerForTokenClassification"]},
        "has, ForMaskedLM, ForSequenceClassification: got LongformerForTokenClassification",
    ),
]


@pytest.mark.parametrize(("name", "fields", "message"), REFUSED)
def test_other_models_are_refused_by_name(name, fields, message, tmp_path):
    with pytest.raises(UserError, match=message):
        import_huggingface(changed_model(name, tmp_path / "other", **fields), tmp_path / "run")


def test_a_classifier_needs_both_of_its_layers(tmp_path):
    without = ["pre_classifier.weight", "pre_classifier.bias"]
    folder = changed_model("distilbert_classes", tmp_path / "tags", without=without)
    message = r"expected pre_classifier\.weight beside classifier\.weight, as in a DistilBertForS"
    with pytest.raises(UserError, match=message):
        import_huggingface(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("roberta_masked", {"norm_position": "pre"}),
        ("roberta_masked", {"num_token_types": 0}),
        ("electra_masked", {"embedding_size": None}),
        ("electra_masked", {"embedding_size": 24}),
        ("electra_classes", {"pooled_activation": "tanh"}),
        ("roformer_classes", {"pooled_activation": "relu"}),
        ("albert_masked", {"layer_groups": None}),
        ("distilbert_classes", {"heads": "pooler masked", "num_classes": 0}),
        ("distilbert_classes", {"architecture": "bert"}),
        ("longformer_plain", {"heads": "spans"}),
        ("big_bird_masked", {"heads": "spans"}),
    ],
)
def test_a_family_lacks_what_its_files_cannot_hold(name, fields):
    config = imported(name).trained.config.model
    tokenizer = imported(name).trained.tokenizer
    layout = known_layouts()[config.architecture]
    assert layout.can_express(config, tokenizer)

    other = dataclasses.replace(config, **fields)
    written = [each for each in known_layouts().values() if each.can_express(other, tokenizer)]
    if name == "electra_masked" and fields["embedding_size"] is None:
        assert written == [layout]
    else:
        assert written == []


@pytest.mark.parametrize("name", by_profile(["albert_pretraining"], nightly=SOME))
def test_attention_of_all_layers_is_recorded(name):
    family = imported(name)
    recorded = record_text(family.workdir, "a dog runs! the house is red").encoder
    model = family.trained.config.model
    assert recorded.shape[:2] == (model.num_layers, model.num_heads)
    np.testing.assert_allclose(recorded.sum(axis=-1), 1, rtol=1e-4)
