# %% [markdown]
# # The annotated paper
#
# ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762) (Vaswani et al. 2017), section by
# section, with the code of jaxformer beside each formula. The format follows ["The Annotated
# Transformer"](https://nlp.seas.harvard.edu/annotated-transformer/) (Rush et al. 2018). Here the
# code is the library itself: `show` prints the installed source, without docstrings, so that the
# page cannot differ from the program. The notebook takes three minutes on two CPU cores.

# %%
import ast
import inspect
import pathlib
import textwrap

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import linen as nn
from IPython.display import Code, Image


def show(*objects, helpers=()):
    """Returns the source of functions and classes, and of their helpers, without docstrings."""
    objects += tuple(getattr(inspect.getmodule(objects[0]), name) for name in helpers)
    source = "\n\n".join(textwrap.dedent(inspect.getsource(o)).rstrip() for o in objects)
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first, last = node.body[0].lineno, node.body[0].end_lineno
            lines[first - 1 : last] = [None] * (last - first + 1)
    return Code("\n".join(line for line in lines if line is not None), language="python")


pathlib.Path("runs").mkdir(exist_ok=True)
plt.rcParams.update({"figure.dpi": 110, "font.size": 8, "axes.titlesize": 9})

# %% [markdown]
# ## 1 Introduction
#
# Recurrent networks compute the state of a position from the state of the position before it. The
# positions of a sentence therefore cannot be computed at the same time. The paper proposes a model
# without recurrence that "draws global dependencies between input and output" by attention alone.
#
# In code, the difference is a loop. A recurrent layer needs `jax.lax.scan` over positions;
# self-attention is a few matrix multiplications over all of them. These two functions are the ones
# that jaxformer times for Table 1:

# %%
from jaxformer.paper.layer_types import recurrent, self_attention

show(recurrent, self_attention)

# %% [markdown]
# ## 2 Background
#
# Convolutions also compute all positions at the same time, but relate two distant positions only
# after several layers. *Self-attention* relates any two positions of one sequence in a single
# layer. Its drawback is that it averages positions, "an effect we counteract with Multi-Head
# Attention". Section 3.2.2 shows both the effect and the cure.
#
# ## 3 Model Architecture
#
# An encoder maps the source $(x_1, \ldots, x_n)$ to representations
# $\mathbf z = (z_1, \ldots, z_n)$. Given $\mathbf z$, a decoder generates the target
# $(y_1, \ldots, y_m)$ one symbol at a time, and reads the symbols generated so far.
#
# `Transformer.__call__` is these two sentences: `encode`, `decode`, and the `logits` of the next
# symbol. `src` and `tgt_in` are token ids; `tgt_in` is the target shifted right.

# %%
from jaxformer import ModelConfig, Transformer

show(Transformer.__call__, Transformer.encode, Transformer.decode)

# %% [markdown]
# The defaults of `ModelConfig` are the paper's base model. `jax.eval_shape` creates its parameters
# without memory for them, so the count is free. The paper says 65 and 213 million; it does not
# state its vocabulary exactly, and ours here is 37,000.


# %%
def count_parameters(config):
    tokens = jnp.ones((1, 1), jnp.int32)
    params = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


big = ModelConfig(d_model=1024, d_ff=4096, num_heads=16)
print(f"base {count_parameters(ModelConfig()):,} parameters, big {count_parameters(big):,}")

# %% [markdown]
# ## 3.1 Encoder and Decoder Stacks
#
# Each side is a stack of $N = 6$ identical layers. A layer consists of sub-layers, and around each
# there is a residual connection, followed by layer normalization:
#
# $$\mathrm{LayerNorm}(x + \mathrm{Sublayer}(x))$$
#
# Section 5.4 adds dropout to the output of the sub-layer. The last line of `Residual` is this
# formula. The branch before it is the later "pre-norm" order, which is optional.

# %%
from jaxformer.nn import Block, LayerNorm, Residual, Stack

show(Residual, LayerNorm)

# %% [markdown]
# A `Block` is one layer: self-attention, in the decoder also attention over the encoder's output
# ("cross-attention"), then the feed-forward network. `Stack` repeats it with `nn.scan`, so that the
# six layers are compiled once and their parameters have a leading axis of size $N$.

# %%
show(Block.__call__, Stack.__call__)

# %% [markdown]
# ## 3.2 Attention
#
# "An attention function can be described as mapping a query and a set of key-value pairs to an
# output." The output is a weighted sum of the values. The weight of a value says how well its key
# fits the query.
#
# ## 3.2.1 Scaled Dot-Product Attention
#
# For all queries at once, as rows of the matrix $Q$, with keys $K$ and values $V$:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V \tag{1}$$

# %%
from jaxformer.nn import kernels, matmul

print("SCORES =", matmul.SCORES, "  WEIGHTED_SUM =", matmul.WEIGHTED_SUM)
show(kernels.attend, kernels.KeyValues, helpers=["_masked_softmax"])

# %% [markdown]
# The letters are the axes: b batch, t queries, s keys, h heads, k and v the sizes of a head.
#
# **By hand.** Three words, "the cat sleeps", with embeddings of width 4, and one head of size 2.
# All numbers are chosen small, so that you can follow them with a pencil.

# %%
words = ["the", "cat", "sleeps"]
x = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 1.0], [1.0, 1.0, 0.0, 2.0]])  # 3 words x 4
w_q = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])  # 4 x d_k
w_k = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])  # 4 x d_k
w_v = np.array([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0], [1.0, 0.0]])  # 4 x d_v

q, k, v = x @ w_q, x @ w_k, x @ w_v
print("Q, K and V, one row for each word:", q, k, v, sep="\n")

# %% [markdown]
# Step 1, the dot product of each query with each key. "the" asks with $(2, 0)$ and finds the key
# $(0, 2)$ of "the" itself: $2 \cdot 0 + 0 \cdot 2 = 0$; with the key $(3, 0)$ of "cat":
# $2 \cdot 3 + 0 \cdot 0 = 6$.

# %%
scores = np.array([[sum(q[i, c] * k[j, c] for c in range(2)) for j in range(3)] for i in range(3)])
assert scores[0, :2].tolist() == [0, 6]
print(scores)

# %% [markdown]
# Step 2, division by $\sqrt{d_k} = \sqrt 2$. Step 3, softmax of each row: exponentials, divided by
# their sum. Each row sums to 1.

# %%
scaled = scores / np.sqrt(2)
exponentials = np.exp(scaled)
weights = exponentials / exponentials.sum(axis=1, keepdims=True)
print(scaled.round(3), weights.round(3), weights.sum(axis=1), sep="\n")

# %% [markdown]
# Step 4, the weighted sum of the values. `dot_product_attention`, which gives plain arrays to
# `attend`, returns the same numbers. It takes axes for batch and heads, which have size 1 here.

# %%
attended = sum(weights[:, [j]] * v[j] for j in range(3))
ours, our_weights = kernels.dot_product_attention(
    *(jnp.asarray(a, jnp.float32)[None, :, None] for a in (q, k, v))
)
np.testing.assert_allclose(our_weights[0, 0], weights, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(ours[0, :, 0], attended, rtol=1e-5)
for word, row in zip(words, attended):
    print(f"{word:>7} {row.round(4)}")

# %% [markdown]
# **Why divide by $\sqrt{d_k}$?** If the components of a query and a key are independent with mean 0
# and variance 1, their dot product has variance $d_k$. Large scores push the softmax to where its
# gradient is small. Here are 1,000 random queries over 32 keys:

# %%
from jaxformer.paper.dot_product_scaling import measure

print("              variance of scores      largest weight     gradient of softmax")
print("   d_k       plain       scaled     plain     scaled     plain     scaled")
for d_k in (4, 64, 512):
    found = measure(d_k, 32, 1000)
    plain, scaled = found["dot product"], found["dot product / √d_k"]
    pairs = zip(plain, scaled)
    print(f"{d_k:6}  ", "  ".join(f"{float(a):9.3f} {float(b):9.3f}" for a, b in pairs))

# %% [markdown]
# The paper compares with *additive attention*, whose score is a small network,
# $v^T \tanh(q + k)$ with $q$ and $k$ already multiplied by its matrices. It needs no factor, but is
# no matrix multiplication, and therefore slow:

# %%
from jaxformer.nn import additive_attention

show(additive_attention, helpers=["additive_scores"])

# %% [markdown]
# ## 3.2.2 Multi-Head Attention
#
# Instead of one attention over vectors of width $d_\mathrm{model}$, there are $h = 8$ over
# projections of width $d_k = d_v = d_\mathrm{model} / h = 64$:
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\,W^O
# \quad\text{where}\quad
# \mathrm{head}_i = \mathrm{Attention}(QW_i^Q,\; KW_i^K,\; VW_i^V)$$
#
# The matrices of all heads are one array, $W^Q$ of shape $[d_\mathrm{model}, h, d_k]$, so that one
# multiplication projects for all heads. Concatenation is the `reshape` at the end. The cache is
# for decoding, where keys and values of earlier tokens are kept.

# %%
from jaxformer import MultiHeadAttention

show(MultiHeadAttention)

# %% [markdown]
# **By hand**, continued: two heads. The first has the matrices from above, the second has two of
# them exchanged. Each head attends alone; then the two results stand side by side, and $W^O$ mixes
# them.

# %%
heads_q, heads_k, heads_v = [w_q, w_k], [w_k, w_q], [w_v, w_v[::-1]]
w_o = np.array([[1.0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, -1]])  # h d_v x d_model


def attention(q, k, v):
    exponentials = np.exp(q @ k.T / np.sqrt(q.shape[1]))
    return exponentials / exponentials.sum(axis=1, keepdims=True) @ v


heads = [attention(x @ a, x @ b, x @ c) for a, b, c in zip(heads_q, heads_k, heads_v)]
np.testing.assert_allclose(heads[0], attended)
concatenated = np.concatenate(heads, axis=1)  # 3 words x (2 heads x 2)
by_hand = concatenated @ w_o

matrices = {
    "query": np.stack(heads_q, axis=1),  # d_model x h x d_k
    "key": np.stack(heads_k, axis=1),
    "value": np.stack(heads_v, axis=1),
    "output": w_o,
}
layer = MultiHeadAttention(num_heads=2)
ours = layer.apply({"params": matrices}, jnp.asarray(x, jnp.float32)[None])
np.testing.assert_allclose(ours[0], by_hand, rtol=1e-5, atol=1e-5)
print(by_hand.round(4))

# %% [markdown]
# **One head beside eight.** "With a single attention head, averaging inhibits this" (attending to
# different positions at once). A task that shows it: say, for every symbol of a random string,
# which symbol stands to its left *and* which to its right. One attention layer reads the string,
# one linear layer gives both answers. One head has one set of weights: it cannot keep the two
# neighbors apart. Both models have the same number of parameters.

# %%
from jaxformer import sinusoidal_positions

LENGTH, SYMBOLS = 12, 16


class Neighbors(nn.Module):
    num_heads: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(SYMBOLS, 64)(tokens) + sinusoidal_positions(LENGTH, 64)
        attended = MultiHeadAttention(num_heads=self.num_heads)(x)
        return nn.Dense(2 * SYMBOLS)(attended).reshape(*tokens.shape, 2, SYMBOLS)


def train_neighbors(num_heads):
    """Returns the model, its parameters, and the accuracies for left and right neighbors."""
    model, optimizer = Neighbors(num_heads), optax.adam(5e-3)

    def loss(params, tokens):
        answers = jnp.stack([tokens[:, :-2], tokens[:, 2:]], axis=-1)
        logits = model.apply(params, tokens)[:, 1:-1]
        hits = (logits.argmax(-1) == answers).mean(axis=(0, 1))
        return optax.softmax_cross_entropy_with_integer_labels(logits, answers).mean(), hits

    @jax.jit
    def step(params, state, key):
        tokens = jax.random.randint(key, (64, LENGTH), 0, SYMBOLS)
        gradients, hits = jax.grad(loss, has_aux=True)(params, tokens)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, hits

    params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), int))
    state = optimizer.init(params)
    for n in range(400):
        params, state, hits = step(params, state, jax.random.key(n))
    return model, params, hits


# %%
from jaxformer.plots.attention_maps import attention_map

string, accuracies = jax.random.randint(jax.random.key(1), (1, LENGTH), 0, SYMBOLS), {}
letters = [chr(ord("a") + i) for i in string[0].tolist()]
for num_heads in (1, 8):
    model, params, accuracies[num_heads] = train_neighbors(num_heads)
    _, recorded = model.apply(params, string, mutable=["intermediates"])
    (weights,) = recorded["intermediates"]["MultiHeadAttention_0"]["weights"]
    left, right = (f"{share:.0%}" for share in accuracies[num_heads].tolist())
    title = f"{num_heads} head(s): {left} of left neighbors correct, {right} of right neighbors"
    picture = pathlib.Path(f"runs/heads_{num_heads}.png")
    attention_map(np.asarray(weights[0]), letters, letters, picture, title)
assert accuracies[1].min() < 0.5
assert accuracies[8].min() > 0.98

# %%
Image("runs/heads_1.png", width=420)

# %% [markdown]
# The single head attends to both neighbors at once. Their average does not tell which of them is on
# the left: the model answers for one side and fails on the other. Of the eight heads, some look one
# symbol back and some one symbol ahead:

# %%
Image("runs/heads_8.png", width=800)

# %% [markdown]
# Real text shows the same, only smaller: in the paper's Table 3, row A, one head costs 0.9 BLEU.
#
# ## 3.2.3 Applications of Attention in our Model
#
# The model uses attention in three ways. They differ in where queries and keys come from, and in
# the mask, which is True where a query may attend:
#
# | | queries | keys and values | mask |
# |---|---|---|---|
# | encoder self-attention | source | source | padding is hidden |
# | decoder self-attention | target | target | padding and later positions are hidden |
# | encoder-decoder attention | target | encoder output | padding of the source is hidden |

# %%
from jaxformer import causal_mask, segment_mask

show(segment_mask, causal_mask)

# %% [markdown]
# A source of 5 tokens and a target of 4, both padded to 6. The third panel of the second row is for
# training with *packing*, where two sentence pairs share a row and must not see each other.

# %%
source = jnp.array([[1, 1, 1, 1, 1, 0]])  # segment 1, then padding
target = jnp.array([[1, 1, 1, 1, 0, 0]])
packed = jnp.array([[1, 1, 1, 2, 2, 0]])  # two sentences in one row
panels = {
    "encoder: padding": segment_mask(source, source),
    "encoder-decoder: padding": segment_mask(target, source),
    "causal_mask(6)": causal_mask(6),
    "decoder: padding and causal": segment_mask(target, target) & causal_mask(6),
    "two packed sentences": segment_mask(packed, packed),
    "packed and causal": segment_mask(packed, packed) & causal_mask(6),
}
figure, grid = plt.subplots(2, 3, figsize=(6.5, 4.4), layout="constrained")
for axes, (title, mask) in zip(grid.flat, panels.items()):
    axes.imshow(mask[0, 0], cmap="Blues", vmin=0, vmax=1.4)
    axes.set(title=title, xlabel="key", ylabel="query")
plt.show()

# %% [markdown]
# The proof that the decoder cannot look ahead: the gradient of an output with respect to all
# inputs. Rows are outputs, columns are inputs; the upper triangle is exactly zero.

# %%
layer, inputs = MultiHeadAttention(num_heads=2), jax.random.normal(jax.random.key(0), (6, 8))
params = layer.init(jax.random.key(1), inputs[None])
jacobian = jax.jacobian(lambda x: layer.apply(params, x[None], mask=causal_mask(6))[0])(inputs)
influence = np.abs(jacobian).sum(axis=(1, 3))
np.testing.assert_array_equal(influence > 0, np.tril(np.ones((6, 6))))
print((influence > 0).astype(int))

# %% [markdown]
# ## 3.3 Position-wise Feed-Forward Networks
#
# A network of two matrices, applied to each position separately, $512 \to 2048 \to 512$:
#
# $$\mathrm{FFN}(x) = \max(0,\; xW_1 + b_1)\,W_2 + b_2 \tag{2}$$
#
# `activation` is `relu`, that is $\max(0, \cdot)$, unless you choose another.

# %%
from jaxformer import FeedForward

show(FeedForward.__call__)

# %% [markdown]
# **By hand**, the end: the whole encoder layer for our three words. To the attention with two heads
# come the residual connection, layer normalization, equation 2, and both once more. `Block` does
# all of it.

# %%
w_1 = np.array([[1.0, 0, -1], [0, 1, 0], [1, 0, 0], [0, -1, 1]])  # d_model x d_ff
w_2 = np.array([[1.0, 0, 0, 1], [0, 1, 0, -1], [0, 0, 2, 0]])  # d_ff x d_model
b_1, b_2 = np.array([0.5, 0.0, -0.5]), np.array([0.0, 0.1, 0.0, 0.2])


def normalize(x):
    centered = x - x.mean(axis=1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-6)


first = normalize(x + by_hand)  # LayerNorm(x + MultiHead(x, x, x))
network = np.maximum(0, first @ w_1 + b_1) @ w_2 + b_2  # equation 2
second = normalize(first + network)  # LayerNorm(first + FFN(first))

norm = {"norm": {"scale": np.ones(4), "bias": np.zeros(4)}}
params = {
    "self_attention": matrices,
    "self_attention_residual": norm,
    "feed_forward": {"inner": w_1, "inner_bias": b_1, "outer": w_2, "outer_bias": b_2},
    "feed_forward_residual": norm,
}
block = Block(MultiHeadAttention(num_heads=2), FeedForward(3))
ours = block.apply({"params": params}, jnp.asarray(x, jnp.float32)[None])
np.testing.assert_allclose(ours[0], second, rtol=1e-4, atol=1e-5)
for word, row in zip(words, second):
    print(f"{word:>7} {row.round(4)}")

# %% [markdown]
# ## 3.4 Embeddings and Softmax
#
# Token ids become vectors of width $d_\mathrm{model}$ by looking up the rows of a matrix $E$. "In
# our model, we share the same weight matrix between the two embedding layers and the pre-softmax
# linear transformation", and the embeddings are multiplied by $\sqrt{d_\mathrm{model}}$:
#
# $$\mathrm{input}(t) = E_t \sqrt{d_\mathrm{model}} + PE_{pos}, \qquad
# \mathrm{logits}(y) = y E^T$$

# %%
from jaxformer.nn import embed, output_logits
from jaxformer.nn.embedding import Embedding

show(Embedding.__call__, Transformer.logits, output_logits)

# %% [markdown]
# The parameters of a small model: there is a single embedding. Its variance is
# $1/d_\mathrm{model}$, so that logits have variance 1. The factor $\sqrt{d_\mathrm{model}}$ gives
# the inputs variance 1, too, beside sinusoids with a mean square of 1/2.

# %%
small = ModelConfig(vocab_size=1000, d_model=256, d_ff=512, num_heads=4, num_layers=2)
tokens = jnp.arange(1000)[None]
variables = jax.jit(Transformer(small).init)(jax.random.key(0), tokens[:, :1], tokens[:, :1])
table = variables["params"]["embedding"]
embedded = embed(table, tokens) * np.sqrt(256)
print("parameters:", ", ".join(variables["params"]))
print(f"variance: table {table.var():.5f}, inputs {embedded.var():.3f}", end=", ")
print(f"mean square of sinusoids {np.square(sinusoidal_positions(1000, 256)).mean():.3f}")
unit = jax.random.normal(jax.random.key(1), (100, 256))  # a decoder output after layer norm
print(f"variance of the logits: {output_logits(unit, table).var():.3f}")

# %% [markdown]
# ## 3.5 Positional Encoding
#
# Attention does not see the order of its inputs. The order is added to the embeddings:
#
# $$PE_{(pos, 2i)} = \sin\left(pos / 10000^{2i/d_\mathrm{model}}\right), \qquad
# PE_{(pos, 2i+1)} = \cos\left(pos / 10000^{2i/d_\mathrm{model}}\right)$$

# %%
show(sinusoidal_positions)

# %%
encodings = sinusoidal_positions(100, 128)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
image = left.imshow(encodings, cmap="RdBu", aspect="auto")
left.set(title="encodings: one row for each position", xlabel="dimension", ylabel="position")
figure.colorbar(image)
for dimension in (8, 16, 32, 64):
    right.plot(encodings[:, dimension], label=f"dimension {dimension}")
right.set(title="single dimensions", xlabel="position")
right.legend(loc="lower right")
plt.show()

# %% [markdown]
# "We hypothesized it would allow the model to easily learn to attend by relative positions, since
# for any fixed offset $k$, $PE_{pos+k}$ can be represented as a linear function of $PE_{pos}$." The
# function rotates each pair of sine and cosine by the angle $k / 10000^{2i/d_\mathrm{model}}$, the
# same rotation at every position:

# %%
offset, pairs = 7, sinusoidal_positions(100, 128).reshape(100, 64, 2)
angles = offset / 10_000 ** (np.arange(64) / 64)
sine, cosine = np.sin(angles), np.cos(angles)
rotated = np.stack(
    [
        pairs[..., 0] * cosine + pairs[..., 1] * sine,  # sin(a + b)
        pairs[..., 1] * cosine - pairs[..., 0] * sine,  # cos(a + b)
    ],
    axis=-1,
)
np.testing.assert_allclose(rotated[:-offset], pairs[offset:], atol=1e-5)
products = encodings @ encodings.T
np.testing.assert_allclose(products.diagonal(10), products[0, 10], rtol=1e-4)
figure, axes = plt.subplots(figsize=(4, 2.2), layout="constrained")
axes.plot(np.arange(-50, 50), products[50])
axes.set(title="dot product of two encodings, by their distance", xlabel="distance")
plt.show()

# %% [markdown]
# ## 4 Why Self-Attention
#
# Table 1, for a sentence of $n = 70$ tokens, $d = 512$, kernel width $k = 3$ and neighborhood $r =
# 33$. While $n < d$, which holds for most sentences, self-attention needs fewer operations than
# recurrence, and its longest path is 1.
#
# | layer type | operations per layer | sequential operations | maximum path length |
# |---|---|---|---|
# | self-attention | $O(n^2 \cdot d)$ | $O(1)$ | $O(1)$ |
# | recurrent | $O(n \cdot d^2)$ | $O(n)$ | $O(n)$ |
# | convolutional | $O(k \cdot n \cdot d^2)$ | $O(1)$ | $O(\log_k(n))$ |
# | self-attention (restricted) | $O(r \cdot n \cdot d)$ | $O(1)$ | $O(n/r)$ |

# %%
from jaxformer.paper import table1

for name, operations in table1.operations(n=70, d=512, r=33).items():
    print(f"{name:26}{operations:12,}")
show(table1.operations)

# %% [markdown]
# `python -m jaxformer.paper.table1` measures the four layers on your machine.
#
# ## 5 Training
#
# The rest of the notebook trains a small model with the paper's recipe, on a corpus that needs no
# download: number words, English to German.
#
# ## 5.1 Training Data and Batching
#
# The paper's vocabulary is of *byte-pair encoding*, shared by both languages. Frequent words are
# one token, rare words several, and no word is unknown.

# %%
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.numerals import NumeralsCorpus

pairs = list(NumeralsCorpus().pairs("train"))
print(len(pairs), "pairs, such as", pairs[0])
tokenizer = train_tokenizer((side for pair in pairs for side in pair), vocab_size=384)
for sentence in (*pairs[0], "größer"):
    print([tokenizer.piece(i) for i in tokenizer.encode(sentence)])

# %% [markdown]
# "Sentence pairs were batched together by approximate sequence length." `bucket_plan` sorts pairs
# into buckets of similar length and fills each batch up to a number of tokens:

# %%
from jaxformer.data.plan import bucket_plan

lengths = np.array([[len(tokenizer.encode(side)) + 1 for side in pair] for pair in pairs[:4000]]).T
plan = bucket_plan(*lengths, tokens_per_batch=2048, seed=0)
print("rows, source length, target length of the buckets:", *plan.shapes, sep="\n  ")
print(f"{plan.batches_per_epoch} batches an epoch; {1 - plan.efficiency:.0%} padding")

# %% [markdown]
# ## 5.2 Hardware and Schedule
#
# The paper trained on 8 P100 GPUs: the base model for 100,000 steps in 12 hours, the big model for
# 300,000 steps in 3.5 days. On several devices, `train` splits each batch over all of them; the
# result depends on their number only by rounding. The work of a step follows from the sizes alone:

# %%
from jaxformer.training.flops import training_flops

sentences = 25_000 // 32  # of 32 tokens: about 25,000 source and 25,000 target tokens
for name, config, steps in (("base", ModelConfig(), 100_000), ("big", big, 300_000)):
    flops = steps * training_flops(config, sentences, 32, 32)
    print(f"{name:>4} {flops:.1e} operations in all, {flops / 400e12 / 3600:.1f} h at 400 TFLOP/s")

# %% [markdown]
# ## 5.3 Optimizer
#
# Adam with $\beta_1 = 0.9$, $\beta_2 = 0.98$, $\epsilon = 10^{-9}$, and a learning rate that rises
# linearly for `warmup_steps` and then falls with the inverse square root of the step:
#
# $$\mathit{lrate} = d_\mathrm{model}^{-0.5} \cdot
# \min\left(\mathit{step}^{-0.5},\;
# \mathit{step} \cdot \mathit{warmup\_steps}^{-1.5}\right) \tag{3}$$

# %%
from jaxformer import inverse_sqrt_schedule
from jaxformer.training.optimizer import configured_optimizer

show(inverse_sqrt_schedule, configured_optimizer)

# %%
steps = np.arange(1, 20_001)
figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
for d_model, warmup in ((512, 4000), (512, 8000), (1024, 4000)):
    rates = inverse_sqrt_schedule(d_model, warmup)(steps - 1)  # optax counts from 0
    formula = d_model**-0.5 * np.minimum(steps**-0.5, steps * warmup**-1.5)
    np.testing.assert_allclose(rates, formula, rtol=1e-5)
    axes.plot(steps, rates, label=f"d_model {d_model}, {warmup} warm-up steps")
axes.set(title="learning rate, equation 3", xlabel="step")
axes.legend()
plt.show()

# %% [markdown]
# ## 5.4 Regularization
#
# **Residual dropout**, $P_\mathrm{drop} = 0.1$: on the output of each sub-layer and on the sums of
# embeddings and positions. The bits are a hash of seed, row and index, so that they do not depend
# on how a batch is split over devices.

# %%
from jaxformer import Dropout

ones = jnp.ones((1000, 100))
row_ids, rngs = jnp.arange(len(ones)), {"dropout": jax.random.key(0)}
dropped = Dropout(0.1).apply({}, ones, row_ids, rngs=rngs)
print(f"{(dropped == 0).mean():.3f} are zero, the mean is still {dropped.mean():.3f}")
show(Dropout)

# %% [markdown]
# **Label smoothing**, $\epsilon_{ls} = 0.1$: the target is not one-hot. It has probability
# $1 - \epsilon_{ls}$ on the correct token $y$, plus $\epsilon_{ls} / V$ on each of the $V$ tokens:
#
# $$\mathrm{loss} = -\sum_{v=1}^{V} q_v \log p_v, \qquad
# q_v = (1 - \epsilon_{ls})\,[v = y] + \epsilon_{ls} / V$$
#
# The code never builds $q$. The sum over all tokens needs only the mean of the logits, which is the
# dot product with the mean embedding. `_chunk_loss` computes loss and gradient of some rows.

# %%
from jaxformer import cross_entropy

show(cross_entropy, helpers=["_chunk_loss"])

# %% [markdown]
# Five tokens, the correct one is token 2. On the left the targets $q$. On the right the loss of a
# model that gives the correct token the probability $p$ and shares the rest equally: with
# smoothing, too much confidence is punished. "This hurts perplexity, as the model learns to be more
# unsure, but improves accuracy and BLEU score."

# %%
V, correct = 5, 2
p = np.linspace(0.05, 0.999, 200)
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.4), layout="constrained")
for smoothing in (0.0, 0.1, 0.4):
    q = (1 - smoothing) * (np.arange(V) == correct) + smoothing / V
    log_p = np.log(np.where(np.arange(V) == correct, p[:, None], (1 - p[:, None]) / (V - 1)))
    # Logits are features times embedding; with the identity, log p are the logits.
    losses = [
        cross_entropy(
            row[None], np.eye(V, dtype="float32"), np.array([correct]), np.ones(1), smoothing
        )
        for row in log_p[::20].astype("float32")
    ]
    by_formula = -(q * log_p).sum(axis=1)
    np.testing.assert_allclose([loss for loss, _ in losses], by_formula[::20], rtol=1e-3, atol=1e-5)
    left.plot(q, "o--", label=f"{smoothing}")
    right.plot(p, by_formula, label=f"{smoothing}")
left.set(title="target distribution", xlabel="token", xticks=range(V))
right.set(title="loss", xlabel="probability of the correct token")
right.legend(title="label smoothing")
plt.show()

# %% [markdown]
# Now everything together: `train` with the optimizer, dropout and label smoothing of the paper, in
# a small model. Run the cell again after an interruption, and training resumes exactly.

# %%
from jaxformer import Config, DataConfig, TrainingConfig, train

config = Config(
    model=ModelConfig(
        vocab_size=384, d_model=128, d_ff=512, num_heads=8, num_layers=2, max_length=128
    ),
    data=DataConfig(
        corpus="numerals",
        train="train",
        valid="held_out",
        batching="packing",
        tokens_per_batch=2048,
        max_length=64,
    ),
    training=TrainingConfig(
        steps=300, warmup_steps=200, checkpoint_every=25, eval_every=150, eval_sentences=100
    ),
)
state = train(config, "runs/annotated")

# %% [markdown]
# ## 6 Results
#
# ## 6.1 Machine Translation
#
# Translation searches for the most probable target. **Beam search** keeps the 4 best unfinished
# hypotheses, and ranks finished ones by log probability divided by the **length penalty** of Wu et
# al. 2016 with $\alpha = 0.6$. Without the penalty short translations would win, since each token
# makes the probability smaller. A translation has at most 50 tokens more than its source.
#
# $$\mathrm{score}(y) = \frac{\log P(y \mid x)}{lp(y)}, \qquad
# lp(y) = \left(\frac{5 + |y|}{6}\right)^\alpha$$

# %%
from jaxformer import gnmt_penalty
from jaxformer.search import BeamSearch

show(gnmt_penalty, BeamSearch.extend)

# %%
from jaxformer import Translator
from jaxformer.inference.conversions import average
from jaxformer.runs.workdir import Workdir

translator = Translator.load("runs/annotated")
for hypothesis in translator.hypotheses(["four hundred and twelve"])[0]:
    score = hypothesis.log_prob / gnmt_penalty(len(hypothesis.tokens), alpha=0.6)
    assert abs(score - hypothesis.score) < 1e-4
    print(f"{score:7.3f}  log P {hypothesis.log_prob:7.3f}  {hypothesis.text}")

# %% [markdown]
# The paper averages the parameters of the last 5 checkpoints of the base model, and of the last 20
# of the big model. Our run is so short that its average need not be better than its last step.
# Other commands use the average by default, once there is one.

# %%
print("average of the steps", average(Workdir(pathlib.Path("runs/annotated")), last=5))
sources, references = zip(*NumeralsCorpus().pairs("held_out"))
for weights in ("averaged", "latest"):
    translations = Translator.load("runs/annotated", weights=weights).translate(sources)
    correct = sum(a == b for a, b in zip(translations, references))
    print(f"{weights:>8}: {correct} of {len(references)} numbers that training never saw")
assert correct > 0.8 * len(references)

# %% [markdown]
# Table 2 reports 27.3 BLEU for the base model and 28.4 for the big model on newstest2014 to German.
# We have not reproduced these numbers; `docs/reproduce.md` has the commands.
#
# ## 6.2 Model Variations
#
# Table 3 changes one thing at a time. Here are its rows with our parameter counts beside the
# paper's, which fit a vocabulary of 37,000. `python -m jaxformer.paper.table3` trains all 20.

# %%
from jaxformer.paper.table3_rows import ROWS, describe, row_config

print(f"{'':5}{'change':34}{'ours':>8}{'paper':>8}{'paper: BLEU':>13}")
for name, row in ROWS.items():
    ours = count_parameters(row_config(name).model) / 1e6
    paper = "" if row.parameters is None else row.parameters
    change = "" if name == "base" else describe(name, "paper")[:32]
    print(f"{name:5}{change:34}{ours:8.0f}{paper:>8}{row.bleu:13}")

# %% [markdown]
# ## 6.3 English Constituency Parsing
#
# A tree is a sequence, too: of brackets. The same model translates words to brackets, with a beam
# of 21 and $\alpha = 0.3$. A decoder may write brackets that do not match; `delinearize` makes a
# tree of any sequence.

# %%
from jaxformer.tasks.parsing.linearization import delinearize, linearize
from jaxformer.tasks.parsing.trees import read_trees

sentence = "(S (NP (DT The) (NN law)) (VP (MD will) (VP (VB be) (ADJP (JJ perfect)))))"
(tree,) = read_trees([sentence], "example")
brackets = linearize(tree, tags=True)
print("source:", *tree.words())
print("target:", *brackets)
assert str(delinearize(brackets, tree.words())) == str(tree)
print("repaired:", delinearize(["(S", "(NP", "(DT)", ")VP", "(VP"], tree.words()))
show(linearize)

# %% [markdown]
# ## 7 Conclusion
#
# The paper ends with plans. Its appendix shows what attention has learned (figures 3 to 5). This is
# figure 5 of our small model: two heads of one layer that do different things.

# %%
from jaxformer import record_attention
from jaxformer.plots.attention_lines import attention_lines, figure_panels
from jaxformer.plots.paper_figures import paper_figures

view = record_attention(translator, "six hundred and thirty-two thousand and eighteen")
choice = paper_figures(view.encoder, view.source)[5]
picture, panels = pathlib.Path("runs/figure5.png"), figure_panels(5, choice)
attention_lines(view.encoder[choice.layer], view.source, panels, picture, "Two heads of one layer")
Image(str(picture), width=500)

# %% [markdown]
# All layers and heads, to point at:

# %%
view

# %% [markdown]
# `docs/paper_map.md` has a row for each section, equation, table and figure, with the code, the
# config, the command and the test. It also lists every departure from the paper.
