# %% [markdown]
# # A model and a task of your own
#
# Training and search do not depend on the Transformer. In this notebook you write a small recurrent
# model that converts numbers to Roman numerals, train it with `fit`, decode it with `beam_search`,
# and fine-tune it to another notation. It takes a minute on two CPU cores.

# %% [markdown]
# ## The model
#
# Any function of parameters works. This one is a Flax module: a GRU reads four digits, another
# writes letters. `step` computes the logits of the next letter from the newest letter and a state.
# Training and search both use it.

# %%
import hashlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

PAD, EOS, BOS = 0, 1, 2  # as beam_search expects, unless it is told others
LETTERS = ["", "", "", *"IVXLCDM"]
LENGTH = 20  # letters of the longest numeral, with end of sequence


class Roman(nn.Module):
    width: int = 96

    def setup(self):
        self.digits, self.letters = nn.Embed(10, self.width), nn.Embed(10, self.width)
        self.reader, self.writer = nn.GRUCell(self.width), nn.GRUCell(self.width)
        self.output = nn.Dense(len(LETTERS))

    def encode(self, source):  # [batch, 4] digits
        state = jnp.zeros((*source.shape[:1], self.width))
        for digit in range(4):
            state, _ = self.reader(state, self.digits(source[:, digit]))
        return state

    def step(self, tokens, state):  # any leading axes
        state, hidden = self.writer(state, self.letters(tokens))
        return self.output(hidden), state

    def __call__(self, source, target_in):  # [batch, length]
        state, logits = self.encode(source), []
        for t in range(target_in.shape[1]):
            now, state = self.step(target_in[:, t], state)
            logits.append(now)
        return jnp.stack(logits, axis=1)


# %% [markdown]
# ## The data
#
# Numbers below 4,000. Training never sees 500 of them. On some clocks 4 is not `IV` but `IIII`:
# with `additive=True` no letter is ever subtracted.

# %%
SUBTRACTED = [(900, "CM"), (400, "CD"), (90, "XC"), (40, "XL"), (9, "IX"), (4, "IV")]
VALUES = [(1000, "M"), (500, "D"), (100, "C"), (50, "L"), (10, "X"), (5, "V"), (1, "I")]


def roman(number, additive=False):
    text = ""
    for value, letters in sorted(VALUES + SUBTRACTED * (not additive), reverse=True):
        text += letters * (number // value)
        number %= value
    return text


def digits(numbers):
    return np.array([[int(digit) for digit in f"{number:04}"] for number in numbers], np.int32)


def letter_ids(text):
    ids = [LETTERS.index(letter) for letter in text] + [EOS]
    return ids + [PAD] * (LENGTH - len(ids))


numbers = np.random.default_rng(0).permutation(np.arange(1, 4000))
held_out, training = numbers[:500], numbers[500:]
print(roman(1994), roman(1994, additive=True))

# %% [markdown]
# ## The task
#
# A `Task` defines the initial parameters, the loss, and the batch of each step. Batch $n$ must
# depend on $n$ alone: that is what makes resuming exact. The loss returns sums, so that any number
# of devices gives the same step.

# %%
import jaxformer


class Spelling(jaxformer.Task):
    best = ("exact", "max")  # which number of evaluate selects the best checkpoint

    def __init__(self, additive=False):
        self.model, self.additive = Roman(), additive

    def init(self, key):
        one = jnp.zeros((1, 4), int)
        return self.model.init(key, one, one)["params"]

    def loss(self, params, batch, randomness):
        logits = self.model.apply({"params": params}, batch["source"], batch["target_in"])
        real = batch["target"] != PAD
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["target"])
        total = (nll * real).sum()
        return {"loss": total, "nll": total, "count": real.sum()}

    def batches(self, start, shards):
        for n in itertools.count(start):
            chosen = np.random.default_rng(n).choice(training, 64)
            yield shards.local(self.batch(chosen))

    def batch(self, chosen):
        target = np.array([letter_ids(roman(n, self.additive)) for n in chosen], np.int32)
        target_in = np.hstack([np.full((len(chosen), 1), BOS, np.int32), target[:, :-1]])
        return {"source": digits(chosen), "target_in": target_in, "target": target}

    def identity(self):  # a run resumes only with the same data
        data = repr((sorted(training), self.additive))
        return {"data": hashlib.sha256(data.encode()).hexdigest()}

    def evaluate(self, params, mesh, check_stop):
        return {"exact": accuracy(params, self.additive)}


# %% [markdown]
# ## Beam search over the model
#
# `beam_search` takes a function of the newest tokens and a cache. The cache is any pytree of arrays
# with the axes [inputs, beams, ...]; here it is the GRU's state, repeated for each beam.

# %%
BEAMS = 4


@jax.jit
def search(params, source):
    variables, model = {"params": params}, Roman()
    state = model.apply(variables, source, method="encode")
    state = jnp.repeat(state[:, None], BEAMS, axis=1)  # [inputs, beams, width]
    step = lambda tokens, state: model.apply(variables, tokens, state, method="step")
    limits = jnp.full(len(source), LENGTH)
    return jaxformer.beam_search(step, state, max_lengths=limits, capacity=LENGTH, beam_size=BEAMS)


def spell(params, numbers):
    best = np.asarray(search(params, digits(numbers)).tokens[:, 0])
    return ["".join(LETTERS[i] for i in row) for row in best]


def accuracy(params, additive=False):
    spelled = zip(held_out, spell(params, held_out), strict=True)
    return float(np.mean([text == roman(number, additive) for number, text in spelled]))


# %% [markdown]
# ## Train
#
# `fit` saves, resumes, validates and logs. Interrupt the cell, or kill the kernel, and run it
# again.

# %%
settings = jaxformer.FitConfig(steps=600, log_every=200, checkpoint_every=300, eval_every=300)
state = jaxformer.fit(Spelling(), optax.adam(5e-3), "runs/roman", settings)

# %%
score = accuracy(state.params)
print(f"{score:.1%} of 500 numbers that training never saw;", spell(state.params, [1994]))
assert score > 0.9

# %% [markdown]
# The other beams are the next best spellings, with their log probabilities:

# %%
found = search(state.params, digits([1994]))
for row, log_prob in zip(np.asarray(found.tokens[0]), found.log_probs[0].tolist()):
    print(f"{log_prob:8.2f}", "".join(LETTERS[i] for i in row))

# %% [markdown]
# ## Fine-tune
#
# A new task, the additive notation, starts from the trained parameters: `start_from` gets those
# that `Spelling.init` has created and returns others. The optimizer starts fresh. `load_params`
# reads the parameters from the run directory, verified.

# %%
trained = jaxformer.load_params("runs/roman", Spelling())

settings = jaxformer.FitConfig(steps=100, log_every=50, checkpoint_every=100, eval_every=100)
optimizer = optax.adam(3e-3)
take = lambda fresh: trained
tuned = jaxformer.fit(Spelling(True), optimizer, "runs/roman-tuned", settings, start_from=take)
scratch = jaxformer.fit(Spelling(True), optimizer, "runs/roman-scratch", settings)
shares = [accuracy(state.params, additive=True) for state in (tuned, scratch)]
print("1994 is now", spell(tuned.params, [1994])[0])
print(f"after 100 steps: {shares[0]:.1%} from the trained model, {shares[1]:.1%} from scratch")
assert shares[0] > shares[1] + 0.3

# %% [markdown]
# To train only some parameters, mask the optimizer. Here the encoder stays as it was:

# %%
labels = {name: "frozen" if name in ("digits", "reader") else "trained" for name in trained}
labels = {name: jax.tree.map(lambda _, n=name: labels[n], tree) for name, tree in trained.items()}
frozen = optax.multi_transform({"trained": optax.adam(3e-3), "frozen": optax.set_to_zero()}, labels)
half = jaxformer.fit(Spelling(True), frozen, "runs/roman-frozen", settings, start_from=take)
jax.tree.map(np.testing.assert_array_equal, half.params["reader"], trained["reader"])
print(f"with a frozen encoder: {accuracy(half.params, additive=True):.1%}")

# %% [markdown]
# `docs/training.md` explains tasks, hooks, writers and optimizers; `docs/layers.md` and
# `docs/research.md` have layers, searches and constraints of your own in short blocks.
