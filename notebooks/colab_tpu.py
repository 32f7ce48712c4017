# ---
# jupyter:
#   accelerator: TPU
# ---

# %% [markdown]
# # Training on the chips of Colab
#
# Colab takes its machines back without warning, and their disks with them. This notebook trains on
# all chips of a Colab machine and keeps a verified second copy of the run on Google Drive. When the
# machine disappears, open the notebook on the next one and choose *Runtime > Run all*: training
# resumes, and ends with the same parameters, bit for bit, on chips of the same kind and number.
#
# Choose the chips first: *Runtime > Change runtime type*. Outside Colab the notebook runs on the
# devices that there are, and copies to a local folder.
#
# What has been tried: tests run this notebook on simulated CPU devices, kill it in the middle,
# delete its disk and run it again; and they check that the installation below leaves every package
# of Colab's CPU, GPU and TPU machines as it is. It has not been run on a TPU.

# %% [markdown]
# ## The chips

# %%
import jax

print(f"{jax.device_count()} x {jax.devices()[0].device_kind}")

# %% [markdown]
# ## The second copy
#
# The run itself stays on the local disk, `WORKDIR`, since checkpoints need a real file system. The
# copy may be on any mounted folder.

# %%
import pathlib

WORKDIR = pathlib.Path("runs/colab")
try:
    from google.colab import drive
except ImportError:  # not on Colab
    MIRROR = pathlib.Path("drive/jaxformer/colab")
else:
    drive.mount("/content/drive")
    MIRROR = pathlib.Path("/content/drive/MyDrive/jaxformer/colab")
MIRROR.parent.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## Train
#
# `MeshConfig(data=-1)` splits each batch over all chips; it is the default. `MeshConfig(fsdp=-1,
# data=1)` also splits parameters and optimizer state, for models that do not fit on one chip.
#
# The model is small, and number words are generated, so that the notebook takes minutes anywhere.
# `ModelConfig()` without arguments is the paper's base model.

# %%
from jaxformer import Config, DataConfig, MeshConfig, ModelConfig, TrainingConfig, train

on_cpu = jax.default_backend() == "cpu"
config = Config(
    model=ModelConfig(
        vocab_size=384,
        d_model=64,
        d_ff=256,
        num_heads=4,
        num_layers=2,
        max_length=128,
        compute_dtype="float32" if on_cpu else "bfloat16",
    ),
    data=DataConfig(
        corpus="numerals",
        train="train",
        valid="held_out",
        batching="packing",
        tokens_per_batch=1024,
        max_length=64,
    ),
    training=TrainingConfig(
        steps=120,
        warmup_steps=100,
        log_every=20,
        checkpoint_every=20,
        eval_every=60,
        eval_sentences=50,
        keep_checkpoints=2,
        mirror=str(MIRROR.absolute()),
    ),
    mesh=MeshConfig(data=-1),
)
state = train(config, WORKDIR)

# %% [markdown]
# To see it resume, interrupt this cell with *Runtime > Restart session*, or with *Disconnect and
# delete runtime*, and run all cells again. The log then begins with the step of the newest copy.
#
# The next cell prints the last validation loss and the SHA-256 of all parameters. They do not
# depend on the interruptions.

# %%
import hashlib

import numpy as np

from jaxformer.plots.learning_curve import read_metrics

reports = read_metrics(WORKDIR / "metrics.jsonl")
loss = [report["loss"] for report in reports if report["kind"] == "valid"][-1]
digest = hashlib.sha256()
for leaf in jax.tree.leaves(jax.device_get(state.params)):
    digest.update(np.asarray(leaf).tobytes())
print("validation loss", loss)
print("SHA-256 of the parameters", digest.hexdigest())

# %% [markdown]
# ## Translate
#
# The copy is itself a run directory. On another machine, load the model from there.

# %%
from jaxformer import Translator

translator = Translator.load(MIRROR)
translator.translate(["two hundred and forty-seven", "ninety-nine"])
