# %% [markdown]
# # A model in Flax NNX
#
# Flax has two APIs for models: linen, which jaxformer's own layers use, and NNX. Training and
# search take functions of parameters, so that a model of either works. In this notebook you write
# a small NNX model that reads dates as people write them, train it with `fit`, and decode it with
# `beam_search`. It takes a minute on two CPU cores.

# %% [markdown]
# ## The data
#
# "3 March 2026", "Mar 3, 2026" and "3.3.2026" are all 2026-03-03. Training never sees 500 of the
# dates, in any form.

# %%
import datetime
import hashlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

PAD, EOS, BOS = 0, 1, 2  # as beam_search expects, unless it is told others
LETTERS = ["", "", "", *" ,-.0123456789", *"ADFJMNOS", *"abcdefghijklmnopqrstuvwxyz"]
SOURCE_LENGTH, LENGTH = 19, 11  # of "September 30, 2026" and "2026-09-30", with their ends
FORMS = [
    "{0:%B} {0.day}, {0:%Y}",  # March 3, 2026
    "{0.day} {0:%B} {0:%Y}",
    "{0:%b} {0.day}, {0:%Y}",  # Mar 3, 2026
    "{0.day}.{0.month}.{0:%Y}",
]


def ids(text, length):
    found = [LETTERS.index(letter) for letter in text] + [EOS]
    return found + [PAD] * (length - len(found))


first = datetime.date(1950, 1, 1)
order = np.random.default_rng(0).permutation(36_500).tolist()
days = [first + datetime.timedelta(days=number) for number in order]
held_out, training = days[:500], days[500:]
print([form.format(held_out[0]) for form in FORMS], held_out[0].isoformat())

# %% [markdown]
# ## The model
#
# An encoder with self-attention reads the date. A recurrent decoder looks at its output, and writes
# one letter in each step: `step` computes the logits of the next letter from the newest letter and
# a state. Training and search both use it.


# %%
class Dates(nnx.Module):
    def __init__(self, width=64, *, rngs):
        self.letters = nnx.Embed(len(LETTERS), width, rngs=rngs)
        self.positions = nnx.Embed(SOURCE_LENGTH, width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.inner = nnx.Linear(width, 2 * width, rngs=rngs)
        self.outer = nnx.Linear(2 * width, width, rngs=rngs)
        self.writer = nnx.GRUCell(2 * width, width, rngs=rngs)
        self.output = nnx.Linear(2 * width, len(LETTERS), rngs=rngs)

    def encode(self, source):  # [batch, length]
        seen = (source != PAD)[:, None, None, :]
        memory = self.letters(source) + self.positions(jnp.arange(source.shape[1]))
        memory += self.attention(memory, mask=seen)
        memory += self.outer(nnx.relu(self.inner(memory)))
        empty = jnp.zeros((len(source), memory.shape[-1]))
        return {"hidden": empty, "memory": memory, "seen": source != PAD}

    def step(self, tokens, state):  # any leading axes
        hidden, memory = state["hidden"], state["memory"]
        read = nnx.dot_product_attention(  # one head, and one query
            *(array[..., None, :] for array in (hidden[..., None, :], memory, memory)),
            mask=state["seen"][..., None, None, :],
        )[..., 0, 0, :]
        inputs = jnp.concatenate([self.letters(tokens), read], axis=-1)
        hidden, _ = self.writer(hidden, inputs)
        logits = self.output(jnp.concatenate([hidden, read], axis=-1))
        return logits, {**state, "hidden": hidden}

    def __call__(self, source, target_in):
        state, logits = self.encode(source), []
        for t in range(LENGTH):
            now, state = self.step(target_in[:, t], state)
            logits.append(now)
        return jnp.stack(logits, axis=1)


# %% [markdown]
# ## From an object to a function
#
# An NNX model is an object that holds its parameters. `nnx.split` takes them out, and
# `nnx.to_pure_dict` makes a tree of arrays, which `fit` trains, saves and shards. `model_of` puts
# a tree back into a model. These three lines are all that NNX needs.

# %%
GRAPH, SHAPES = nnx.split(nnx.eval_shape(lambda: Dates(rngs=nnx.Rngs(0))))


def params_of(model):
    return nnx.to_pure_dict(nnx.state(model))


def model_of(params):
    state = jax.tree.map(lambda shape: shape, SHAPES)  # a copy
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(GRAPH, state)


# %% [markdown]
# ## The task
#
# A `Task` defines the initial parameters, the loss, and the batch of each step, as in the notebook
# `your_own_model`. Only `init` and `loss` know of NNX.

# %%
import jaxformer


class Normalization(jaxformer.Task):
    best = ("exact", "max")  # which number of evaluate selects the best checkpoint

    def init(self, key):
        return params_of(Dates(rngs=nnx.Rngs(key)))

    def loss(self, params, batch, randomness):
        logits = model_of(params)(batch["source"], batch["target_in"])
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["target"])
        return {"loss": nll.sum(), "nll": nll.sum(), "count": nll.size}

    def batches(self, start, shards):
        for n in itertools.count(start):  # batch n depends on n alone, so that a run can resume
            rng = np.random.default_rng(n)
            chosen = [training[i] for i in rng.integers(len(training), size=64)]
            texts = [FORMS[rng.integers(len(FORMS))].format(day) for day in chosen]
            target = np.array([ids(day.isoformat(), LENGTH) for day in chosen], np.int32)
            target_in = np.hstack([np.full((64, 1), BOS, np.int32), target[:, :-1]])
            batch = {"source": sources(texts), "target_in": target_in, "target": target}
            yield shards.local(batch)

    def identity(self):  # a run resumes only with the same data
        return {"data": hashlib.sha256(repr((training, FORMS)).encode()).hexdigest()}

    def evaluate(self, params, mesh, check_stop):
        return {"exact": accuracy(params)}


def sources(texts):
    return np.array([ids(text, SOURCE_LENGTH) for text in texts], np.int32)


# %% [markdown]
# ## Beam search over the model
#
# `beam_search` takes a function of the newest tokens and a cache: any tree of arrays with the axes
# [inputs, beams, ...]. Here it is the state of the decoder, repeated for each beam.

# %%
BEAMS = 4


@jax.jit
def search(params, source):
    model = model_of(params)
    repeat = lambda array: jnp.repeat(array[:, None], BEAMS, axis=1)
    state = jax.tree.map(repeat, model.encode(source))
    limits = jnp.full(len(source), LENGTH)
    return jaxformer.beam_search(
        model.step, state, max_lengths=limits, capacity=LENGTH, beam_size=BEAMS
    )


def read(params, texts):
    best = np.asarray(search(params, sources(texts)).tokens[:, 0])
    return ["".join(LETTERS[i] for i in row) for row in best]


def accuracy(params):
    texts = [FORMS[n % len(FORMS)].format(day) for n, day in enumerate(held_out)]
    found = zip(held_out, read(params, texts), strict=True)
    return float(np.mean([text == day.isoformat() for day, text in found]))


# %% [markdown]
# ## Train
#
# `fit` saves, resumes, validates and logs. Interrupt the cell, or kill the kernel, and run it
# again: the parameters are the same as without the interruption, bit for bit.

# %%
settings = jaxformer.FitConfig(steps=600, log_every=200, checkpoint_every=300, eval_every=300)
state = jaxformer.fit(Normalization(), optax.adam(3e-3), "runs/dates", settings)

# %%
score = accuracy(state.params)
print(f"{score:.1%} of 500 dates that training never saw")
print(read(state.params, ["3 March 2026", "Mar 3, 2026", "3.3.2026"]))
assert score > 0.9

# %% [markdown]
# The trained model is an NNX object again, for code that expects one:

# %%
model = model_of(state.params)
logits = model(sources(["3 March 2026"]), jnp.array([[BOS, *ids("2026-03-03", LENGTH)[:-1]]]))
print("".join(LETTERS[i] for i in np.asarray(logits[0].argmax(-1))))

# %% [markdown]
# `docs/layers.md` shows the other direction: jaxformer's layers, or the whole Transformer, as an
# NNX module.
