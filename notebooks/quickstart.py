# %% [markdown]
# # jaxformer in five minutes
#
# This notebook translates with the model that comes with jaxformer. Then it trains a small
# Transformer to translate English number words to German, translates and scores numbers that it
# never saw, and looks at its attention. It takes two minutes on two CPU cores and needs no
# download.

# %% [markdown]
# ## Translate at once
#
# A small English-German model for everyday sentences comes with the package.

# %%
from jaxformer import Translator

Translator.load().translate(["Where is the station?", "I would like a cup of tea."])

# %% [markdown]
# ## Train
#
# A `Config` has one section for each part of an experiment; `help(ModelConfig)` explains every
# field. The corpus is generated: number words below a million, such as "two hundred and seven" and
# "zweihundertsieben". No number is in both splits, `train` and `held_out`.

# %%
from jaxformer import Config, DataConfig, ModelConfig, TrainingConfig, train

config = Config(
    model=ModelConfig(
        vocab_size=384, d_model=128, d_ff=512, num_heads=4, num_layers=2, max_length=128
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
        steps=300, warmup_steps=200, checkpoint_every=100, eval_every=100, eval_sentences=100
    ),
)
state = train(config, "runs/quickstart")

# %% [markdown]
# Interrupt the cell and run it again: training resumes with the same batches and random numbers,
# and ends with the same parameters, bit for bit. Now that the run is finished, the cell has nothing
# to do.
#
# The run directory holds everything: the config, the tokenizer, checkpoints and metrics.

# %%
import pathlib

from IPython.display import Image

from jaxformer.plots.learning_curve import learning_curve, read_metrics

picture = pathlib.Path("runs/quickstart/learning_curve.png")
reports = read_metrics(pathlib.Path("runs/quickstart/metrics.jsonl"))
learning_curve({"quickstart": reports}, picture)
Image(str(picture), width=800)

# %% [markdown]
# ## Translate with your model
#
# `translate` returns the best translation of each sentence, found by beam search with a beam of 4,
# as in the paper. `hypotheses` returns the whole beam with its scores.

# %%
translator = Translator.load("runs/quickstart")
translator.translate(["two hundred and forty-seven", "ninety-nine thousand and one"])

# %%
for hypothesis in translator.hypotheses(["eighty-one"])[0]:
    print(f"{hypothesis.score:7.3f}  {hypothesis.text}")

# %% [markdown]
# Numbers that training never saw. A translation counts if it equals the reference.

# %%
from jaxformer.data.numerals import NumeralsCorpus

sources, references = zip(*NumeralsCorpus().pairs("held_out"))
translations = translator.translate(sources)
correct = sum(a == b for a, b in zip(translations, references))
print(f"{correct} of {len(references)} unseen numbers are correct")
assert correct > 0.8 * len(references)

# %% [markdown]
# ## Look at attention
#
# `record_attention` translates a sentence and records the weights of every layer and head. In a
# notebook the result is an interactive page: point at a token, and choose layers and heads.

# %%
from jaxformer import record_attention

view = record_attention(translator, "two hundred and forty-seven")
view

# %% [markdown]
# The weights are also arrays. Here is the encoder-decoder attention of the last layer as a picture:
# each row is a target token, and shows the source tokens that the decoder attended to when it
# wrote the next token. German says the ones before the tens, and some heads jump accordingly.

# %%
from jaxformer.plots.attention_maps import attention_map

layers, heads, queries, keys = view.cross.shape
picture = pathlib.Path("runs/quickstart/attention.png")
attention_map(view.cross[-1], view.target, view.source, picture, f"{view.translation}: last layer")
Image(str(picture), width=800)

# %% [markdown]
# ## The same on the command line
#
# ```
# echo "two hundred and seven" | jaxformer translate --workdir runs/quickstart
# jaxformer attention --workdir runs/quickstart "two hundred and forty-seven"
# jaxformer plot --workdir runs/quickstart
# ```
#
# Next: `annotated_paper.ipynb` explains the model, `your_own_model.ipynb` trains a model and a task
# of your own, `colab_tpu.ipynb` trains on the chips of Colab.
