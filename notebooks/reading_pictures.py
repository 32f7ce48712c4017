# %% [markdown]
# # From pictures to words
#
# In this notebook a Vision Transformer looks at a picture of a number, three digits written by
# hand, and the decoder of the paper spells it: "four hundred seven". The same parts, trained to
# match pictures with texts, recognize numbers that they never saw. It takes a few minutes on two
# CPU cores and needs no download.

# %% [markdown]
# ## The data
#
# scikit-learn has 1,797 handwritten digits of 8 by 8 pixels. Three of them side by side are a
# number from 0 to 999. Training uses three quarters of the digits and 900 of the numbers.
# Everything is measured on the other digits and the other 100 numbers.

# %%
import hashlib
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxformer
from jaxformer.data.images import read_images
from jaxformer.data.numerals import spell_english

digits = {
    split: read_images(jaxformer.ImagesConfig(corpus="digits"), split)
    for split in ("train", "test")
}
numbers = np.random.default_rng(0).permutation(1000)
held_out, training = numbers[:100], numbers[100:]


def compose(rng, numbers, split):
    """Returns pictures [N, 8, 24, 1] of numbers, with a random digit of the split in each place."""
    images, labels = digits[split]
    places = np.stack([numbers // 100, numbers // 10 % 10, numbers % 10], axis=1)
    rows = [[rng.choice(np.flatnonzero(labels == digit)) for digit in each] for each in places]
    return np.concatenate(images[np.array(rows)].swapaxes(0, 1), axis=2)


# %% [markdown]
# Words are tokens. As everywhere in jaxformer, 0 is padding, 1 ends a text and 2 begins it.

# %%
LENGTH = 6  # words of the longest number, with the end


def spell(number):
    return spell_english(int(number)).replace(" and", "").replace("-", " ").split()


WORDS = ["", "", "", "", *sorted({word for number in range(1000) for word in spell(number)})]


def word_ids(texts):
    """Returns the ids of lists of words, each with the end and padding, [N, LENGTH]."""
    rows = [[*map(WORDS.index, words), 1] for words in texts]
    return np.array([row + [0] * (LENGTH - len(row)) for row in rows], np.int32)


print(spell(407), word_ids([spell(407)]))

# %% [markdown]
# ## The model
#
# `Transformer` encodes tokens. Only one method has to change to encode pictures: the encoder is a
# `ViT`, which cuts a picture into 4 by 12 patches. Everything else stays as it is: the decoder,
# its attention to the encoder, the cache, and the search.

# %%
from jaxformer import ModelConfig, Transformer, ViT, ViTConfig

SIZES = {"d_model": 64, "d_ff": 128, "num_heads": 4, "num_layers": 2, "dropout_rate": 0.0}
PICTURES = ViTConfig(
    height=8, width=24, channels=1, patch_size=2, num_classes=0, pooling="mean", **SIZES
)
TEXTS = ModelConfig(vocab_size=len(WORDS), norm_position="pre", max_length=LENGTH, **SIZES)


class Reader(Transformer):
    """Spells the number in a picture."""

    pictures: ViTConfig = PICTURES

    def setup(self):
        super().setup()
        self.eyes = ViT(self.pictures)

    def encode(self, src, segments=None, positions=None, **dropout):
        return self.eyes.features(PICTURES.scale_pixels(src), **dropout)

    def __call__(self, images, words_in):
        encoded = self.encode(images)
        return self.logits(self.decode(words_in, encoded, all_patches(images)))


def all_patches(images):
    """Returns the segments of patches: none is padding."""
    return jnp.ones((len(images), PICTURES.num_tokens), jnp.int32)


reader = Reader(TEXTS)

# %% [markdown]
# ## The task
#
# A `Task` has the initial parameters, the loss, and the batch of each step. Pictures are deformed a
# little at random, each by the number of its row.

# %%
from jaxformer.data.images import Augmentation
from jaxformer.tasks.images.image_augmentation import augment

DEFORM = Augmentation(shift=0.7, rotation=4.0, zoom=0.08, shear=0.2, warp=0.5)


def deform(images, randomness):
    if randomness is None:  # evaluation
        return images
    wide = jnp.asarray(images, jnp.float32)
    return augment(wide, randomness.key, randomness.row_ids, DEFORM)


class Reading(jaxformer.Task):
    best = ("exact", "max")
    rows = 64

    def init(self, key):
        return reader.init(key, jnp.zeros((1, 8, 24, 1)), jnp.zeros((1, 1), int))["params"]

    def loss(self, params, batch, randomness):
        words = batch["words"]
        words_in = jnp.pad(words[:, :-1], ((0, 0), (1, 0)), constant_values=2)
        images = deform(batch["images"], randomness)
        logits = reader.apply({"params": params}, images, words_in)
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, words)
        real = words != 0
        return {"loss": (nll * real).sum(), "count": real.sum()}

    def batches(self, start, shards):
        for n in itertools.count(start):
            rng = np.random.default_rng(n)
            chosen = rng.choice(training, self.rows, replace=False)
            images = compose(rng, chosen, "train")
            yield shards.local({"images": images, "words": word_ids(map(spell, chosen))})

    def identity(self):
        content = b"".join(images.tobytes() for images, _ in digits.values())
        return {"digits": hashlib.sha256(content).hexdigest()}

    def evaluate(self, params, mesh, check_stop):
        return {"exact": accuracy(params)}


# %% [markdown]
# ## Beam search
#
# The same search that translates sentences: `start` encodes the pictures, `step_fn` decodes.

# %%
from jaxformer.models.stepwise import step_fn


@jax.jit
def search(params, images):
    sizes = {"num_beams": 4, "capacity": LENGTH}
    patches = all_patches(images)
    cache = reader.apply({"params": params}, images, patches, **sizes, method="start")
    limits = jnp.full(len(images), LENGTH)
    step = step_fn(reader, params)
    return jaxformer.beam_search(step, cache, max_lengths=limits, capacity=LENGTH, beam_size=4)


def read(params, images):
    """Returns the words of each picture."""
    best = np.asarray(search(params, images).tokens[:, 0])
    return [[WORDS[i] for i in row if i > 3] for row in best]


test = compose(np.random.default_rng(1), held_out, "test")


def accuracy(params):
    pairs = zip(read(params, test), held_out, strict=True)
    return float(np.mean([words == spell(number) for words, number in pairs]))


# %% [markdown]
# ## Train
#
# `fit` saves, resumes, validates and logs. Interrupt the cell and run it again: it continues. Muon
# (Jordan et al. 2024) trains the matrices of the layers, which in as many steps reads more numbers
# than AdamW.


# %%
def rate(peak):
    return optax.warmup_cosine_decay_schedule(0.0, peak, 100, steps)


steps = 1200
task = Reading()
optimizer = jaxformer.muon(
    rate(0.018), task.describe(), adam_learning_rate=rate(3e-3), weight_decay=0.05
)
settings = jaxformer.FitConfig(steps=steps, log_every=200, checkpoint_every=400, eval_every=400)
state = jaxformer.fit(task, optimizer, "runs/reading", settings)

# %%
score = accuracy(state.params)
print(f"{score:.0%} of 100 numbers that training never saw, in digits that it never saw")
for words, number in list(zip(read(state.params, test), held_out, strict=True))[:5]:
    print(f"{number:03}", " ".join(words))
assert score > 0.7

# %% [markdown]
# ## Pictures and texts in one space
#
# The second form has no decoder. Two encoders map pictures and texts to vectors. Each picture
# should be closest to its own text among all texts of the batch, and each text to its own picture
# (Radford et al. 2021). On several devices, `contrastive_sums` compares with the rows of all.

# %%
from jaxformer import Encoder, EncoderConfig

SPACE = 64
sees = ViT(ViTConfig(**vars(PICTURES) | {"num_classes": SPACE}))
reads = Encoder(EncoderConfig(**vars(TEXTS) | {"num_classes": SPACE}))


class Matching(Reading):
    best = ("recognized", "max")
    rows = 128

    def init(self, key):
        image, words = jnp.zeros((1, 8, 24, 1)), jnp.ones((1, LENGTH), int)
        params = {
            "sees": sees.init(key, image)["params"],
            "reads": reads.init(key, words)["params"],
        }
        return params | {"scale": jnp.log(10.0)}

    def loss(self, params, batch, randomness):
        images = PICTURES.scale_pixels(deform(batch["images"], randomness))
        pictures = sees.apply({"params": params["sees"]}, images)
        texts = reads.apply({"params": params["reads"]}, batch["words"])
        return jaxformer.contrastive_sums(pictures, texts, jnp.exp(params["scale"]))

    def evaluate(self, params, mesh, check_stop):
        return {"recognized": recognized(params, held_out)}


@jax.jit
def similarity(params, images, words):
    pictures = sees.apply({"params": params["sees"]}, PICTURES.scale_pixels(images))
    texts = reads.apply({"params": params["reads"]}, words)
    sides = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (pictures, texts))
    return jnp.matmul(*(x if n == 0 else x.T for n, x in enumerate(sides)))


def recognized(params, candidates):
    """Classifies the test pictures by the most similar text of some numbers."""
    words = word_ids(map(spell, candidates))
    found = np.asarray(similarity(params, test, words)).argmax(axis=1)
    return float(np.mean(candidates[found] == held_out))


# %% [markdown]
# The encoder of pictures starts with the parameters that it has learned as a reader.


# %%
def start_from(fresh):
    return fresh | {"sees": fresh["sees"] | state.params["eyes"]}


steps = 400
settings = jaxformer.FitConfig(steps=steps, log_every=100, checkpoint_every=200, eval_every=200)
matched = jaxformer.fit(
    Matching(), optax.adamw(rate(2e-3)), "runs/matching", settings, start_from=start_from
)

# %%
score = recognized(matched.params, held_out)
print(f"{score:.0%} of 100 numbers that training never saw, recognized among their 100 texts")
print(f"{recognized(matched.params, np.arange(1000)):.0%} among the texts of all 1,000 numbers")
assert score > 0.5

# %% [markdown]
# The class of a picture is the text that describes it best. No class of these numbers was ever
# trained.
#
# ## Where each word looks
#
# The attention of each word to the patches, the mean of the heads of the last layer. The decoder
# was never told that numbers have digits, nor where they are.

# %%
from IPython.display import Image

from jaxformer.plots.image_attention import draw_maps


@jax.jit
def cross_attention(params, images, words_in):
    variables = {"params": params}
    _, recorded = reader.apply(variables, images, words_in, mutable="intermediates")
    weights = recorded["intermediates"]["decoder"]["layers"]["cross_attention"]["weights"][0]
    return weights[-1].mean(axis=1)  # [pictures, words, patches]


images = test[[0, 1, 4]]
words = read(state.params, images)
words_in = np.hstack([np.full((3, 1), 2), word_ids(words)[:, :-1]])
weights = np.asarray(cross_attention(state.params, images, words_in))
maps = [w[: len(own)].reshape(-1, *PICTURES.grid) for w, own in zip(weights, words, strict=True)]
path = pathlib.Path("reading.png")
draw_maps(images, maps, words, path, [" ".join(own) for own in words])
Image(str(path))
