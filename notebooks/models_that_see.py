# %% [markdown]
# # Models that see
#
# Three models beside the Vision Transformer: ConViT, which begins as a convolution; CLIP, which
# names letters that it never saw; and Flamingo, which lets a trained language model see. It takes
# a few minutes on two CPU cores and needs no download. The runs are short: the full ones, and their
# figures, are in [Pictures](../docs/vision.md) and
# [Pictures and text](../docs/pictures_and_text.md).

# %%
import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxformer

plt.rcParams.update({"figure.dpi": 110, "font.size": 8, "axes.titlesize": 9})


def shorter(name, steps, **data):
    """Returns a config of jaxformer with fewer steps, and maybe other data."""
    config = jaxformer.load_config(name)
    training = dataclasses.replace(
        config.training,
        steps=steps,
        warmup_steps=max(1, steps // 10),
        log_every=steps,
        eval_every=steps,
        checkpoint_every=steps,
    )
    return dataclasses.replace(
        config, data=dataclasses.replace(config.data, **data), training=training
    )


# %% [markdown]
# ## A Transformer that begins as a convolution
#
# A Vision Transformer has to learn that nearby pixels belong together. In the first layers of a
# ConViT (d'Ascoli et al. 2021), each head begins by looking at one neighbor, as the places of a
# convolution's kernel do, and a gate decides how much it attends by content instead. Both learn
# from 134 digits, a tenth of the training digits of scikit-learn.

# %%
from jaxformer.data.images import read_images

STEPS = 400
scores = {}
for name in ("digits", "digits:convit"):
    config = shorter(name, STEPS, train="train[:10%]")
    run = f"runs/{config.model.architecture}"
    jaxformer.train(config, run)
    classifier = jaxformer.ImageClassifier.load(run)
    images, labels = read_images(config.data, config.data.valid)
    found = classifier.probabilities(images).argmax(axis=1)
    scores[config.model.architecture] = float(np.mean(found == labels))

for name, score in scores.items():
    print(f"{name}: {score:.1%} of 450 digits that training never saw")
assert scores["convit"] > 0.85

# %% [markdown]
# The gates after training: near 1, a head attends by offsets; near 0, by content.

# %%
from jaxformer.models.convit import gates_of

gates = np.asarray(gates_of(classifier.params))  # [layers, heads]
figure, axes = plt.subplots(figsize=(4, 2.2), layout="constrained")
axes.plot(range(1, len(gates) + 1), gates, "o-")
axes.axhline(jax.nn.sigmoid(1.0), color="gray", linestyle=":", label="before training")
axes.set(xlabel="layer", ylabel="gate of each head", xticks=range(1, len(gates) + 1), ylim=(0, 1))
axes.legend()
plt.show()

# %% [markdown]
# ## Letters that it never saw
#
# CLIP (Radford et al. 2021) maps pictures and texts to one space. Here the pictures are Latin
# letters, drawn with the fonts of matplotlib, and the texts are their names in Unicode. 46 pairs of
# a letter and an accent are held out: training has the letter with other accents, and the accent
# with other letters, but never both together.

# %%
STEPS = 300
config = shorter("glyphs", STEPS)
state = jaxformer.train(config, "runs/glyphs")

# %%
from jaxformer.data.image_texts import read_image_texts

matcher = jaxformer.ImageTextMatcher.load("runs/glyphs")
images, names = read_image_texts("glyphs", "test")
candidates = [*dict.fromkeys(names)]
nearest = matcher.similarity(images, candidates).argmax(axis=1)
found = np.array(candidates)[nearest]
score = float(np.mean(found == names))
print(f"{score:.0%} of {len(images):,} pictures are named, of {len(candidates)} names")
assert score > 0.1  # ten times chance is 0.12, which longer training passes by far

figure, grid = plt.subplots(3, 6, figsize=(8, 4.2), layout="constrained")
chosen = np.linspace(0, len(images) - 1, grid.size).astype(int)
for number, axes in zip(chosen, grid.flat, strict=True):
    axes.imshow(images[number, :, :, 0], cmap="gray_r")
    words = found[number].removeprefix("LATIN ").replace(" LETTER", "").replace(" WITH", "\nWITH")
    is_right = found[number] == names[number]
    axes.set_title(words.lower(), fontsize=6, color="black" if is_right else "tab:orange")
    axes.axis("off")
plt.show()

# %% [markdown]
# Above each letter is the nearest of the names, in orange if it is not the letter's own.
#
# ## A language model that begins to see
#
# Flamingo (Alayrac et al. 2022) puts gated blocks between the layers of a language model:
# `y += tanh(alpha) * attention(norm(y), pictures)`. All gates begin at 0. So the model begins as
# the language model that it was, to the last bit, whatever the pictures are.

# %%
from jaxformer import Flamingo, FlamingoConfig, Llama, LlamaConfig

SIZES = {"vocab_size": 30, "d_model": 32, "d_ff": 64, "num_heads": 4, "num_layers": 4}
llama = Llama(LlamaConfig(**SIZES, max_length=32))
flamingo = Flamingo(
    FlamingoConfig(
        **SIZES,
        max_length=32,
        picture_token=6,
        gated_every=1,
        height=8,
        width=8,
        channels=1,
        pixel_mean="0.5",
        pixel_std="0.5",
        patch_size=2,
        vision_d_model=16,
        vision_d_ff=32,
        vision_num_heads=2,
        vision_num_layers=1,
        num_latents=4,
        resampler_d_ff=32,
        resampler_num_heads=2,
        resampler_num_layers=1,
        resampler_d_k=8,
    )
)
tokens = jnp.array([[6, 9, 12, 6, 20, 7]])  # Two pictures, each before its text.
pictures = jax.random.normal(jax.random.key(0), (1, 2, 8, 8, 1))
language = llama.init(jax.random.key(1), tokens)["params"]
params = flamingo.init(jax.random.key(2), pictures, tokens)["params"]
params = params | {name: own for name, own in language.items() if name != "decoder"}
params["decoder"] = params["decoder"] | language["decoder"]

read = llama.apply({"params": language}, tokens)
seen = flamingo.apply({"params": params}, pictures, tokens)
print("the largest difference:", float(jnp.abs(read - seen).max()))
assert (read == seen).all()

# %% [markdown]
# Training moves the gates and leaves the language model as it is. In the run of
# [configs/flamingo.py](../configs/flamingo.py), they open most before the last layers:
# [the figure](../docs/flamingo_gates.png).
