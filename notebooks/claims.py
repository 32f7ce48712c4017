# %% [markdown]
# # Claims about the Transformer, measured
#
# Explanations of "Attention Is All You Need" repeat claims that are rarely measured. Guess first,
# then run the cell. `docs/claims.md`, also in Chinese, says what follows from each, and has more
# claims. No cell needs data or a trained model; two cells train small networks.

# %%
import dataclasses
import pathlib

from IPython.display import Image, Markdown, display

from jaxformer.paper import claims
from jaxformer.paper.claims import free_running, norm_depth
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.claims.small_runs import RIGHT, train
from jaxformer.registry import find_entries

KNOWN = find_entries(claims, Claim)


def show(name):
    """Measures a claim, shows its figures and its picture, and returns the figures."""
    claim = KNOWN[name]
    figures = claim.measure()
    picture = pathlib.Path(f"{name}.png")
    claim.draw(figures, picture)
    display(
        Markdown(f"**{claim.says}**\n\n{claim.report(figures)}"), Image(str(picture), width=460)
    )
    return figures


# %% [markdown]
# ## Residual connections
#
# Take the residual connections out of a stack with layer norm. Does the gradient vanish? Which of
# the five stacks has positions that are still different after 24 layers?

# %%
found = show("residual")
assert found["norm, no residual"][24].gradient > 1e-3  # the gradient does not vanish
assert found["norm, no residual"][6].similarity > 0.99  # but all positions are the same
assert found["neither"][24].gradient < 1e-6

# %% [markdown]
# ## Norm after, or norm first
#
# A decoder of 24 layers learns to repeat the token before; guessing is right in 6 %. The paper
# normalizes after each residual connection, most models since then do so first. Which of the two
# learns the task in 200 steps? The claim has more depths and seeds.

# %%
STEPS = 200


def right_tokens(setting, **changes):
    """Trains a network of a claim, and returns its right tokens in %."""
    course = train(dataclasses.replace(setting, **changes), seeds=1)
    return RIGHT.values(course)[0]


after, first = (
    right_tokens(norm_depth.SETTINGS[name][24], steps=STEPS, warmup=STEPS // 2)
    for name in ("norm after, warm-up", "norm first, warm-up")
)
print(f"norm after: {after:.0f} %, norm first: {first:.0f} %")
assert after < 20 < 80 < first

# %% [markdown]
# ## Batch norm
#
# A sentence comes in different batches. How much do its vectors change?

# %%
found = show("batch_norm")
assert found[32].layer_norm == 0
assert found[2].batch_norm > found[32].batch_norm > 0.01

# %% [markdown]
# ## The square root of d_k
#
# Would the cosine of query and key need the same division?

# %%
found = show("scaling")
assert found["dot product"][1024].gradient < 0.1
assert found["cosine"][1024].largest < 0.05  # all of 32 weights are nearly equal

# %% [markdown]
# ## Heads
#
# What doubles when the number of heads doubles, and the width stays?

# %%
found = show("heads")
assert found[1].parameters == found[32].parameters
assert found[32].operations < 1.05 * found[1].operations
assert found[32].score_bytes == 32 * found[1].score_bytes

# %% [markdown]
# ## Sinusoids
#
# Are the vectors of different positions orthogonal? Does the curve of rotary positions differ?

# %%
found = show("sinusoids")
assert found.smallest > 0.1
assert found.shift_error < 1e-9

# %% [markdown]
# ## Word order
#
# 猫坐在垫子上 is "the cat sits on the mat", 垫子坐在猫上 is "the mat sits on the cat". Which of
# the three stacks can tell them apart?

# %%
found = show("order")
assert found["encoder, no positions"].max() < 1e-5
assert found["decoder, no positions"].min() > 1e-3

# %% [markdown]
# ## A model's own mistakes
#
# A decoder continues rows of digits, each the sum of the three before, modulo 10. After training on
# true digits, it reads either the true digits again, or its own. How many of the digits are right?
# If p are right with the true digits, and what follows a first mistake is guessed, how many can be
# right alone?

# %%
STEPS = 600
with_truth, alone = (
    right_tokens(free_running.WAYS[name], steps=STEPS, warmup=STEPS // 12, tests=1)
    for name in ("trained and tested on the truth", "trained on the truth, tested alone")
)
print(f"with the true digits: {with_truth:.0f} %, alone: {alone:.0f} %")
assert with_truth > alone + 15

# %% [markdown]
# ## Byte pair encoding
#
# In the second round, two pairs are equally frequent. Does it matter which one is merged?

# %%
found = show("bpe")
assert {result.texts[-1] for result in found} == {"XdXac"}
assert len({result.merges for result in found}) == 2

# %% [markdown]
# The other claims have commands, which print their figures:

# %%
for claim in KNOWN.values():
    print(f"python -m jaxformer.paper.claims {claim.name:18} # {claim.says}")
