"""Bergamot's files against a writer and a model in NumPy, which follow Marian's formulas."""

import contextlib
import dataclasses
import io
import itertools
import re
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from jaxformer.cli import main
from jaxformer.config import Config, DataConfig, read_config
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.numerals import NumeralsCorpus
from jaxformer.data.tokenizer import BOS, EOS
from jaxformer.errors import UserError
from jaxformer.inference import shortlist as shortlists
from jaxformer.inference.conversions import write_model
from jaxformer.inference.shortlist import Shortlist
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import TrainedModel, load_model
from jaxformer.interop.bergamot import exporter
from jaxformer.interop.bergamot.bergamot_files import read_shortlist, read_tensors
from jaxformer.interop.bergamot.importer import import_bergamot
from jaxformer.interop.export import export_model
from jaxformer.kinds.model_parameters import make_init
from jaxformer.models.student import Student, StudentConfig
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch

# Sizes of the model.
D = 8
F = 12
HEADS = 2
ENCODER = 2
DECODER = 1

# Types of tensors, in their file.
FLOAT32 = 0x404
INT8 = 0x101
INTGEMM8 = 0x4101
INTGEMM8_AVX2 = 0x10001

SETTINGS = f"""dec-cell: ssru
dec-depth: {DECODER}
dim-emb: {D}
dim-vocabs:
  - 40
  - 40
enc-depth: {ENCODER}
transformer-decoder-autoreg: rnn
transformer-dim-ffn: {F}
transformer-ffn-activation: relu
transformer-heads: {HEADS}
transformer-postprocess: dan
transformer-postprocess-top: ""
transformer-preprocess: ""
transformer-tied-layers: []
"""


def write(path, tensors, *, int8=INTGEMM8, version=1, kinds=None, settings=SETTINGS):
    """Writes tensors, matrices as intgemm8; returns their values after quantization."""
    kinds = kinds or {}
    text = settings.encode() + b"\0"
    tensors = {**tensors, "special:model.yml": np.frombuffer(text, np.int8)}

    headers = []
    names = b""
    shapes = b""
    blobs = b""
    exact = {}

    for name, value in tensors.items():
        is_table = name.endswith("Wemb")
        is_matrix = is_table or ("_W" in name and "ln" not in name)
        exact[name] = value.astype(np.float32)

        if value.dtype == np.int8:
            kind = INT8
            data = value.tobytes()
        elif is_matrix:
            kind = int8
            multiplier = np.float32(127 / np.abs(value).max())
            quantized = np.rint(value * multiplier).astype(np.int8)
            stored = quantized if is_table else quantized.T
            data = stored.tobytes() + struct.pack("<f", multiplier)
            exact[name] = quantized / multiplier
        else:
            kind = FLOAT32
            data = value.astype("<f4").tobytes()

        # Each tensor takes a multiple of 256 bytes.
        data += bytes(-len(data) % 256)
        headers.append((len(name) + 1, kinds.get(name, kind), value.ndim, len(data)))
        names += name.encode() + b"\0"
        shapes += struct.pack(f"<{value.ndim}i", *value.shape)
        blobs += data

    start = struct.pack("<QQ", version, len(headers))
    for header in headers:
        start += struct.pack("<QQQQ", *header)
    start += names + shapes

    # The first tensor begins at a multiple of 256 bytes, too.
    padding = -(len(start) + 8) % 256
    path.write_bytes(start + struct.pack("<Q", padding) + bytes(padding) + blobs)
    return exact


def random_tensors(sizes):
    """Returns a model's tensors, whose embeddings have these sizes by name."""
    rng = np.random.default_rng(0)
    *_, target_size = sizes.values()
    found = {}

    def draw(name, *shape):
        found[name] = rng.normal(0, 0.4, shape)

    for name, size in sizes.items():
        draw(name, size, D)
    draw("decoder_ff_logit_out_b", 1, target_size)

    layers = [(f"encoder_l{n + 1}", "self") for n in range(ENCODER)]
    layers += [(f"decoder_l{n + 1}", "context") for n in range(DECODER)]
    for layer, attention in layers:
        for letter in "qkvo":
            draw(f"{layer}_{attention}_W{letter}", D, D)
            draw(f"{layer}_{attention}_b{letter}", 1, D)
        norms = [f"{layer}_{attention}_Wo"]

        draw(f"{layer}_ffn_W1", D, F)
        draw(f"{layer}_ffn_b1", 1, F)
        draw(f"{layer}_ffn_W2", F, D)
        draw(f"{layer}_ffn_b2", 1, D)
        norms.append(f"{layer}_ffn_ffn")

        if attention == "context":
            draw(f"{layer}_rnn_W", D, D)
            draw(f"{layer}_rnn_Wf", D, D)
            draw(f"{layer}_rnn_bf", 1, D)
            norms.append(f"{layer}_rnn_ffn")

        for norm in norms:
            found[f"{norm}_ln_scale"] = rng.normal(1, 0.2, (1, D))
            found[f"{norm}_ln_bias"] = rng.normal(0, 0.2, (1, D))

    found["none_QuantMultA"] = np.ones((1, 1))
    return found


def marian_logits(p, source, target):
    """Returns the logits after each target token, as Marian computes them."""

    def linear(x, weight, bias):
        return x @ p[weight] + p[bias]

    def norm(x, name):
        mean = x.mean(-1, keepdims=True)
        variance = x.var(-1, keepdims=True)
        normalized = (x - mean) / np.sqrt(variance + 1e-6)
        return normalized * p[f"{name}_ln_scale"] + p[f"{name}_ln_bias"]

    def embed(rows):
        exponents = np.arange(D // 2) / (D // 2 - 1)
        positions = np.arange(len(rows))[:, None]
        angles = positions / 10_000**exponents  # [T, D / 2]
        encodings = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        return rows * np.sqrt(D) + encodings

    def split(x):
        return x.reshape(len(x), HEADS, -1)

    def attend(x, memory, name):
        q = split(linear(x, f"{name}_Wq", f"{name}_bq"))  # [T, H, K]
        k = split(linear(memory, f"{name}_Wk", f"{name}_bk"))  # [S, H, K]
        v = split(linear(memory, f"{name}_Wv", f"{name}_bv"))  # [S, H, K]

        scores = np.einsum("thk,shk->hts", q, k) / np.sqrt(D / HEADS)
        exps = np.exp(scores)
        weights = exps / exps.sum(-1, keepdims=True)
        heads = np.einsum("hts,shk->thk", weights, v)

        joined = heads.reshape(len(x), D)
        output = linear(joined, f"{name}_Wo", f"{name}_bo")
        return norm(x + output, f"{name}_Wo")

    def feed(x, layer):
        hidden = linear(x, f"{layer}_ffn_W1", f"{layer}_ffn_b1")
        hidden = np.maximum(hidden, 0)
        output = linear(hidden, f"{layer}_ffn_W2", f"{layer}_ffn_b2")
        return norm(x + output, f"{layer}_ffn_ffn")

    def recur(y, layer):
        """The SSRU: c_t = f_t * c_(t - 1) + (1 - f_t) * W y_t, whose output is relu(c_t)."""
        gates = linear(y, f"{layer}_rnn_Wf", f"{layer}_rnn_bf")  # [T, D]
        kept = 1 / (1 + np.exp(-gates))
        new = (1 - kept) * (y @ p[f"{layer}_rnn_W"])

        state = np.zeros(D)
        states = []
        for t in range(len(y)):
            state = kept[t] * state + new[t]
            states.append(state)
        output = np.maximum(np.stack(states), 0)
        return norm(y + output, f"{layer}_rnn_ffn")

    source_table = p.get("encoder_Wemb", p.get("Wemb"))
    target_table = p.get("decoder_Wemb", p.get("Wemb"))

    x = embed(source_table[source])  # [S, D]
    for n in range(1, ENCODER + 1):
        x = attend(x, x, f"encoder_l{n}_self")
        x = feed(x, f"encoder_l{n}")

    # The zero vector begins the sentence.
    rows = np.concatenate([np.zeros((1, D)), target_table[target]])
    y = embed(rows)  # [T, D]
    for n in range(1, DECODER + 1):
        y = recur(y, f"decoder_l{n}")
        y = attend(y, x, f"decoder_l{n}_context")
        y = feed(y, f"decoder_l{n}")

    return y @ target_table.T + p["decoder_ff_logit_out_b"]  # [T, V]


def learn_vocabulary(path, words):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words * 20),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        pad_id=-1,
    )
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


ENGLISH = ["the old house", "a small river"]
GERMAN = ["das alte Haus", "ein kleiner Fluss"]


@pytest.mark.parametrize(("is_split", "int8"), [(False, INTGEMM8), (True, INTGEMM8_AVX2)])
def test_logits_equal_those_of_marian(tmp_path, is_split, int8):
    if is_split:
        source = learn_vocabulary(tmp_path / "srcvocab.ende.spm", ENGLISH)
        target = learn_vocabulary(tmp_path / "trgvocab.ende.spm", GERMAN)
        sizes = {"encoder_Wemb": len(source), "decoder_Wemb": len(target)}
    else:
        source = learn_vocabulary(tmp_path / "vocab.ende.spm", ENGLISH + GERMAN)
        target = source
        sizes = {"Wemb": len(source)}
    exact = write(tmp_path / "model.ende.intgemm.alphas.bin", random_tensors(sizes), int8=int8)

    assert "parameters" in import_bergamot(tmp_path, tmp_path / "run")
    translator = Translator.load(tmp_path / "run", compute_dtype="float32")
    assert translator.config.data.target_language == "de"

    their_source = [*source.encode("the small house"), 0]
    their_target = target.encode("ein alter Fluss")
    expected = marian_logits(exact, their_source, their_target)

    src_ids = translator.source_ids("the small house")
    tgt_ids = translator.target_ids("ein alter Fluss")
    src = np.array([src_ids], np.int32)
    tgt_in = np.array([[BOS, *tgt_ids[:-1]]], np.int32)
    apply = jax.jit(Student(translator.config.model).apply)
    logits = apply({"params": translator.params}, src, tgt_in)
    [found] = np.asarray(logits)  # [T, V]

    # A piece that both sides have is one piece of ours, the last of that name.
    our_ids = {translator.tokenizer.piece(i): i for i in range(found.shape[1])}
    ordinary = {piece: ours for piece, ours in our_ids.items() if ours > 3}
    for piece, ours in ordinary.items():
        theirs = target.piece_to_id(piece)
        if theirs == target.unk_id():  # a piece of the source only
            assert (found[:, ours] == -np.inf).all()
        else:
            np.testing.assert_allclose(found[:, ours], expected[:, theirs], atol=2e-4)
    np.testing.assert_allclose(found[:, EOS], expected[:, 0], atol=2e-4)
    assert translator.translate(["the old river"])[0] is not None


@pytest.fixture
def model(tmp_path):
    vocabulary = learn_vocabulary(tmp_path / "vocab.ende.spm", ENGLISH)
    path = tmp_path / "model.ende.bin"
    tensors = random_tensors({"Wemb": len(vocabulary)})
    write(path, tensors)
    return path, tensors


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "is encrypted, version 2"),
        ({"version": 7}, "is of version 7"),
        ({"kinds": {"Wemb": 0x12001}}, "Wemb is a matrix packed for one kind of CPU"),
        ({"kinds": {"Wemb": 0x4102}}, "Wemb is intgemm16"),
        ({"kinds": {"Wemb": 0x999}}, "Wemb is of type 0x999"),
        ({"settings": SETTINGS.replace("ssru", "gru")}, "dec-cell to be 'ssru': got 'gru'"),
        ({"settings": SETTINGS.replace("relu", "gelu")}, "expected the activation relu or swish"),
        ({"settings": SETTINGS.replace("heads: 2", "heads: 3")}, "model.num_heads must divide"),
        ({"settings": SETTINGS.replace("emb: 8", "emb: x")}, "to be a whole number: got 'x'"),
        ({"settings": ""}, "expected settings in special:model.yml: none"),
    ],
)
def test_other_models_are_refused(model, changes, words):
    path, tensors = model
    write(path, tensors, **changes)
    with pytest.raises(UserError, match=re.escape(words)):
        import_bergamot(path.parent, path.parent / "run")


def test_missing_and_superfluous_tensors_are_refused(model):
    path, tensors = model

    write(path, {name: value for name, value in tensors.items() if name != "encoder_l2_ffn_b1"})
    with pytest.raises(UserError, match="expected an array encoder_l2_ffn_b1"):
        import_bergamot(path.parent, path.parent / "run")

    write(path, {**tensors, "encoder_l3_ffn_b1": np.ones((1, F))})
    with pytest.raises(UserError, match="no place for encoder_l3_ffn_b1"):
        import_bergamot(path.parent, path.parent / "run")


def test_damaged_files_end_in_errors(model):
    path, _ = model
    content = bytearray(path.read_bytes())

    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        with pytest.raises(UserError):
            read_tensors(path)

    # One bit is another.
    rng = np.random.default_rng(0)
    for place in [*range(200), *rng.integers(0, 4000, 100)]:
        changed = content.copy()
        changed[place] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        with contextlib.suppress(UserError):  # and no other exception
            read_tensors(path)


def shortlist(entries, checksum=None):
    """Returns a shortlist's bytes, with the checksum of Marian's formula."""
    offsets = np.cumsum([0, *map(len, entries)])
    tokens = np.array([*itertools.chain(*entries)], "<u4")
    body = struct.pack("<4Q", 5, 2, len(offsets), len(tokens))
    body += offsets.astype("<u8").tobytes()
    body += tokens.tobytes()

    if checksum is None:
        checksum = 0
        whole_words = body[: len(body) // 8 * 8]
        for (word,) in struct.iter_unpack("<Q", whole_words):
            mixed = word + 0x9E3779B9 + (checksum << 6) + (checksum >> 2)
            checksum ^= mixed & (2**64 - 1)
    return struct.pack("<2Q", 0xF11A48D5013417F5, checksum) + body


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_shortlist_restricts_the_search(model, dtype, monkeypatch):
    """As a mask of all other logits does, for one sentence; with it, probabilities sum to 1."""
    path, _ = model
    monkeypatch.setattr(shortlists, "_SIZES", range(8, 40))
    vocabulary = sentencepiece.SentencePieceProcessor(
        model_file=str(path.parent / "vocab.ende.spm")
    )
    rng = np.random.default_rng(0)
    lists = [rng.choice(len(vocabulary), 1).tolist() for _ in range(len(vocabulary))]
    path.with_name("lex.50.50.ende.s2t.bin").write_bytes(shortlist(lists))
    import_bergamot(path.parent, path.parent / "run")

    for text in ("the old", "a river"):
        # The first five tokens, the tokens of the source, and what their lists add.
        source = [*vocabulary.encode(text), 0]
        allowed = {*range(5), *source}
        for token in source:
            allowed.update(lists[token])
        our_ids = [{0: EOS, 1: 3}.get(token, token + 2) for token in allowed]
        mask = np.full(len(vocabulary) + 2, -np.inf, np.float32)
        mask[our_ids] = 0

        def restrict(logits, context, mask=mask):
            return logits + mask

        masked = Translator.load(
            path.parent / "run",
            search=BeamSearch(beam_size=1, constraints=(restrict,), max_length=12),
            compute_dtype=dtype,
        )
        short = Translator.load(
            path.parent / "run",
            search=BeamSearch(beam_size=1, max_length=12),
            shortlist=True,
            compute_dtype=dtype,
        )

        [found] = short.translate_ids([short.source_ids(text)])
        [expected] = masked.translate_ids([masked.source_ids(text)])
        assert found.tokens == expected.tokens
        assert found.log_probs[0] > expected.log_probs[0]


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch):
    monkeypatch.setattr(exporter, "_FEATURES", 4)
    monkeypatch.setattr(shortlists, "_SIZES", (20, 24))


def test_shortlists_of_workdirs(tmp_path, monkeypatch):
    monkeypatch.setattr(shortlists, "_SIZES", (20,))
    made = Shortlist(np.array([1, 4]), np.array([0, 0, 0, 0, 0, 2, 3]), np.array([5, 6, 5]))
    made.save(tmp_path)

    with pytest.raises(UserError, match="expected a shortlist of 9 tokens"):
        Shortlist.load(tmp_path, 9)
    with pytest.raises(UserError, match="expected a shortlist of 6 tokens"):
        Shortlist.load(tmp_path, 6)  # Token 6 is out of range.

    chosen = made.candidates([[4, 1], [5, 1]], 100)
    assert chosen.tolist() == [0, 1, 2, 3, 4, 5, 6] + [0] * 13
    assert made.candidates([[4, 1]], 20) is None

    (tmp_path / "shortlist.npz").write_bytes(b"PK damaged")
    with pytest.raises(UserError, match="expected a shortlist: "):
        Shortlist.load(tmp_path, 6)


def test_shortlists_are_read_and_checked(tmp_path):
    path = tmp_path / "lex.bin"
    path.write_bytes(shortlist([[], [7, 9], [8]]))
    found = read_shortlist(path)
    assert found.num_common == 5
    assert found.offsets.tolist() == [0, 0, 2, 3]
    assert found.tokens.tolist() == [7, 9, 8]

    for content, words in (
        (shortlist([[7, 9]], checksum=1), "it is damaged"),
        (shortlist([[7, 9]])[:-1], "within its data"),
        (b"\0" * 64, "does not begin as a shortlist"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=words):
            read_shortlist(path)


def test_an_import_is_exported_as_it_was(model, tmp_path):
    path, tensors = model
    size = len(tensors["Wemb"])
    lists = [[]] + [[7, 9]] * (size - 1)
    path.with_name("lex.50.50.ende.s2t.bin").write_bytes(shortlist(lists))
    import_bergamot(tmp_path, tmp_path / "run")
    export_model("bergamot", tmp_path / "run", tmp_path / "out")

    found, found_settings = read_tensors(tmp_path / "out" / "model.ende.intgemm.alphas.bin")
    expected, settings = read_tensors(path)
    bias = expected["decoder_ff_logit_out_b"].copy()
    bias[0, 1] = -100  # <unk>
    expected["decoder_ff_logit_out_b"] = bias
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-7, err_msg=name)

    settings = {**settings, "dim-vocabs": f"{size} {size}"}
    assert {name: found_settings[name] for name in settings} == settings

    for ours, theirs in (("vocab", "vocab"), ("lex", "lex.50.50")):
        [before] = tmp_path.glob(f"{theirs}.ende.*")
        [after] = (tmp_path / "out").glob(f"{ours}.ende.*")
        assert after.read_bytes() == before.read_bytes()


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """Returns the workdir of a random student with a SentencePiece tokenizer, for numerals."""
    pairs = list(NumeralsCorpus("en", "de").pairs("held_out"))
    tokenizer = train_tokenizer([*itertools.chain(*pairs)], 320)

    section = StudentConfig(
        vocab_size=320,
        d_model=D,
        d_ff=F,
        num_heads=HEADS,
        max_length=64,
        num_layers=ENCODER,
        num_decoder_layers=DECODER,
        positions="tensor2tensor",
    )
    config = Config(
        model=section,
        data=DataConfig(corpus="numerals", max_length=64),
        search=BeamSearch(beam_size=1, max_length=12),
    )

    folder = Workdir(tmp_path_factory.mktemp("student") / "run")
    write_model(
        folder,
        "tests",
        {"tokenizer": tokenizer.sha256},
        tokenizer=tokenizer.serialized,
        config=config,
        params=jax.jit(make_init(section))(jax.random.key(0)),
    )
    return folder.path


@pytest.fixture(scope="module")
def exported(student, tmp_path_factory):
    """Returns the folder of the student's export, with a shortlist and three sentences' maxima."""
    Shortlist.learn([([300], [301, 302])] * 2, 320).save(student)
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "_SENTENCES", 3)
        patch.setattr(exporter, "_FEATURES", 4)
        export_model("bergamot", student, folder / "out")
    return folder / "out"


def test_parameters_that_bergamot_lacks_are_refused(student, tmp_path):
    trained = TrainedModel.load(student)
    more = dataclasses.replace(trained, params=trained.params | {"adapter": np.zeros(3)})
    with pytest.raises(UserError, match=r"Bergamot: .* a StudentConfig, got also adapter; export"):
        exporter.write(more, tmp_path)


def test_a_trained_student_is_rounded_to_int8(student, exported, tmp_path):
    import_bergamot(exported, tmp_path / "run")
    _, ours = load_model(student)
    found = TrainedModel.load(tmp_path / "run")
    assert read_config(Workdir(tmp_path / "run")).model.d_ff == F

    # The same pieces and the same text; only the ids differ.
    text = "two hundred and 7 ÿ"
    our_tokenizer = TrainedModel.load(student).tokenizer
    their_tokenizer = found.tokenizer
    our_ids = our_tokenizer.encode(text)
    their_ids = their_tokenizer.encode(text)
    our_pieces = [our_tokenizer.piece(i) for i in our_ids]
    their_pieces = [their_tokenizer.piece(i) for i in their_ids]
    assert our_pieces == their_pieces
    assert our_tokenizer.decode(our_ids) == their_tokenizer.decode(their_ids)

    # Half a step of 127 to each side, and a little more.
    table = np.asarray(ours["embedding"])
    largest = np.abs(np.delete(table, [0, BOS], axis=0)).max()
    rounded = found.params["embedding"][4:320]
    np.testing.assert_allclose(rounded, table[4:], atol=largest / 253)
    for stack in ("encoder", "decoder"):
        for path, leaf in jax.tree.leaves_with_path(ours[stack]):
            other = found.params[stack]
            for key in path:
                other = other[key.key]
            largest = np.abs(leaf).max()
            np.testing.assert_allclose(other, leaf, atol=largest / 253)

    learned = Shortlist.load(tmp_path / "run", 322)
    begin, end = learned.offsets[300:302]
    assert learned.targets[begin:end].tolist() == [301, 302]


def test_activations_are_clipped_at_the_maxima_of_sentences(student, exported):
    """At their mean and 1.1 standard deviations, as Marian's scripts do."""
    module, params = load_model(student)
    translator = Translator.load(student)
    pairs = itertools.islice(NumeralsCorpus("en", "de").pairs("train"), 3)
    sources = [translator.source_ids(source) for source, _ in pairs]

    @jax.jit
    def maxima(src, tokens):
        """Returns the largest input of the logits, and of the decoder's keys and values."""
        memory = module.apply({"params": params}, src, method="encode")
        features = module.apply({"params": params}, tokens, memory, src != 0, method="decode")
        return largest(features, tokens), largest(memory, src)

    def largest(x, ids):
        """Returns the largest value at a token."""
        is_padding = (ids == 0)[..., None]
        return abs(jnp.where(is_padding, 0, x)).max()

    def padded(ids, length):
        row = np.zeros((1, length), np.int32)
        row[0, : len(ids)] = ids
        return row

    found = []
    translations = translator.translate_ids(sources)
    for source, decoded in zip(sources, translations, strict=True):
        tokens = [BOS, *decoded.tokens[0][:-1]]
        found.append(maxima(padded(source, 40), padded(tokens, 16)))

    alphas, _ = read_tensors(exported / "model.ende.intgemm.alphas.bin")
    names = ("Wemb", "decoder_l1_context_Wv")
    for name, values in zip(names, np.array(found).T, strict=True):
        limit = np.mean(values) + 1.1 * np.std(values)
        assert alphas[f"{name}_QuantMultA"].item() == pytest.approx(127 / limit, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": "sinusoidal"}, "expected model.positions=tensor2tensor, got sinu"),
        ({"embeddings": "separate"}, "expected model.embeddings=tied, got separate"),
        ({"norm_epsilon": 1e-5}, "expected model.norm_epsilon=1e-06, got 1e-05"),
        ({"qk_norm": True}, "expected model.qk_norm=False, got True; export stablehlo instead"),
        ({"d_ff": 10}, "expected model.d_ff to be a multiple of 4, got 10"),
        ({"activation": "gelu"}, "expected model.activation=relu or swish, got gelu"),
        (None, "expected a student, a StudentConfig, got a ModelConfig"),
    ],
)
def test_what_bergamot_lacks_is_refused(student, tmp_path, changes, words):
    trained = TrainedModel.load(student)
    section = Config().model
    if changes is not None:
        section = dataclasses.replace(trained.config.model, **changes)
    config = dataclasses.replace(trained.config, model=section)
    with pytest.raises(UserError, match=re.escape(words)):
        exporter.write(dataclasses.replace(trained, config=config), tmp_path)


def test_the_beginning_of_sentence_is_the_zero_vector(student):
    module, params = load_model(student)
    table = np.asarray(params["embedding"])
    changed = table.copy()
    changed[BOS] += 1
    tokens = np.array([[BOS, 5, 6]], np.int32)
    apply = jax.jit(module.apply)

    def logits_of_others(embedding):
        logits = apply({"params": {**params, "embedding": embedding}}, tokens[:, 1:], tokens)
        return np.delete(logits, BOS, -1)

    np.testing.assert_array_equal(logits_of_others(table), logits_of_others(changed))


def test_the_command_learns_from_the_runs_text_or_from_files(student, tmp_path, capsys):
    assert main(["shortlist", "--workdir", str(student), "--pairs", "30"]) == 0
    assert "learned from 30 pairs" in capsys.readouterr().out
    own = Shortlist.load(student, 320)

    pairs = list(itertools.islice(NumeralsCorpus("en", "de").pairs("train"), 30))
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    for side, file in enumerate(files):
        file.write_text("".join(f"{pair[side]}\n" for pair in pairs))
    words = ["shortlist", "--workdir", str(student), "--source", str(files[0])]
    assert main([*words, "--target", str(files[1])]) == 0
    again = Shortlist.load(student, 320)
    for field in dataclasses.fields(Shortlist):
        np.testing.assert_array_equal(getattr(own, field.name), getattr(again, field.name))

    for file in files:
        file.write_text("")
    for more, message in (
        ([], "--source and --target go together: give both or none"),
        (["--target", str(files[1])], "expected sentence pairs to learn from: found none"),
        (["--target", str(files[1]), "--best", "0"], "--best must be at least 1: got 0"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err
