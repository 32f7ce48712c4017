"""The command ``push``, which uploads a model."""

from jaxformer.cli.command import Command
from jaxformer.cli.options import Checkpoint, ModelDir
from jaxformer.waits import announce


def push(
    workdir: ModelDir,
    name: str,
    *,
    weights: Checkpoint = "auto",
    private: bool = False,
    update: bool = False,
    license: str | None = None,
) -> None:
    """Upload a model to the Hugging Face Hub, with a model card; hf://OWNER/NAME then loads it.

    Options:
      name (OWNER/NAME): repository to create; OWNER/NAME@BRANCH writes to a branch
      private: create a private repository
      update: replace the files of a repository that exists, in a new commit
      license: identifier of the license, such as apache-2.0, for the model card

    Example:
      jaxformer push runs/multi30k OWNER/NAME --license apache-2.0

      HF_TOKEN, or hf auth login, gives the right to write. A model from jaxformer import hf is in
      the layout of transformers, any other model is a run directory of jaxformer.
    """
    from jaxformer.interop.push import push_model

    with announce(f"uploading {workdir}"):
        pushed = push_model(
            workdir,
            name,
            weights=weights,
            private=private,
            update=update,
            license=license,
        )
    print(
        f"{pushed.url}: {pushed.format}, {pushed.size / 1e6:.1f} MB, commit {pushed.commit[:8]}\n"
        f"  {pushed.use}"
    )


COMMAND = Command("push", push, place=230)
