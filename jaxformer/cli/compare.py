"""The command ``compare``: significance tests between systems on one reference."""

import argparse
import re

from tqdm import tqdm

from jaxformer.data.text_files import COMPRESSED, read_file
from jaxformer.errors import UserError
from jaxformer.evaluation.bleu_report import measures
from jaxformer.evaluation.significance import compare as compare_systems


def compare(options: argparse.Namespace) -> None:
    """Prints every metric of every system, with intervals and, for two or more, p-values.

    Raises:
      UserError: A file cannot be read, has another number of lines than the reference or is given
        twice, or the target language is unknown.
    """
    suffixes = [name for name in options.reference.suffixes if name not in COMPRESSED]
    language = options.language or "".join(suffixes[-1:]).removeprefix(".")
    if options.language is None and not re.fullmatch("[a-z]{2}", language):
        raise UserError(
            f"--language CODE is needed, since {options.reference} does not end in one, such as .de"
        )
    names = [str(path) for path in options.translations]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is given twice; give each system once")
    references = list(read_file(options.reference))
    systems = {str(path): list(read_file(path)) for path in options.translations}
    with tqdm(total=len(measures(language)), unit="metric", disable=None) as bar:
        report = compare_systems(systems, references, target_language=language, report=bar.update)
    print(report.to_json() if options.json else report.table())
