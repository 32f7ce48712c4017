"""Loading of a translator by options, and a progress bar."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm

from jaxformer import pretrained
from jaxformer.cli.decoding_options import search_settings
from jaxformer.errors import UserError
from jaxformer.inference.translator import Translator
from jaxformer.search import BeamSearch, Sampling


def load(options: argparse.Namespace, search: BeamSearch | Sampling | None = None) -> Translator:
    """Loads the model or ensemble of the options, and logs its weights to standard error.

    Args:
      options: Options that include
        :func:`~jaxformer.cli.decoding_options.add_model_options`.
      search: Settings of the search; None: the settings of the options.

    Raises:
      UserError: A model is missing or damaged, or the tokenizers of an ensemble differ.
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
        if folder == pretrained.WORKDIR:
            print(f"the {pretrained.DESCRIPTION}; --workdir names another", file=sys.stderr)
        else:
            print(f"{folder}: {part.weights}", file=sys.stderr)
    if codes := translator.tokenizer.language_codes:
        print(f"begin each line with a language code: {', '.join(codes)}", file=sys.stderr)
    return translator.ensemble_with(*parts[1:])


@contextlib.contextmanager
def progress(total: int | None, *, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar with sentences per second and the remaining time.

    Args:
      total: Number of sentences; None if unknown, which hides the remaining time.
      hidden: Hides the bar even if standard error is a terminal.

    Yields:
      A function to call with the number of newly finished sentences.
    """
    # smoothing=0 shows the mean rate, since batches of long sentences come first and are slower.
    with tqdm(total=total, unit="sentence", smoothing=0, disable=hidden or None) as bar:

        def report(finished: int) -> None:
            bar.update(finished)

        yield report
