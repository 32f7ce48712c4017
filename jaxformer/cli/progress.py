"""From options to a Translator, and a bar that shows how far it is."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm

from jaxformer.cli.decoding_options import search_settings
from jaxformer.errors import UserError
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch, Sampling


def load(options: argparse.Namespace, search: BeamSearch | Sampling | None = None) -> Translator:
    """The model or ensemble that the options ask for; says on standard error which it is.

    Args:
      options: With those of :func:`~jaxformer.cli.decoding_options.add_model_options`.
      search: Settings of the search; those that the options ask for when None.

    Raises:
      UserError: A model is missing or damaged, or models do not go together.
    """
    search = search_settings(options) if search is None else search
    folders = [options.workdir, *options.ensemble]
    settings = {"weights": options.weights, "search": search, "compute_dtype": options.dtype}
    parts = [Translator.load(folder, **settings) for folder in folders]
    translator = parts[0]
    for folder, part in zip(folders, parts, strict=True):
        if part.tokenizer.sha256 != translator.tokenizer.sha256:
            raise UserError(
                f"{folder}: expected the tokenizer of {options.workdir}, to make an ensemble with "
                "it, but it has another; train both with the same vocabulary"
            )
        print(f"{folder}: {part.weights}", file=sys.stderr)
    return translator.ensemble_with(*parts[1:])


@contextlib.contextmanager
def progress(total: int | None, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar of finished sentences, how many in a second, and the time left.

    Args:
      total: How many there are; None: not known, and no time left is shown.
      hidden: Show none even if standard error is a terminal.

    Yields:
      What to call with the number of those that have just been finished.
    """
    # smoothing=0 shows the mean rate: batches of long sentences come first and take longer.
    with tqdm(total=total, unit="sentence", smoothing=0, disable=hidden or None) as bar:

        def report(finished: int) -> None:
            bar.update(finished)

        yield report
