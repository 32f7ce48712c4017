"""The command ``evaluate``: translates a file and scores it against a reference."""

import argparse
import contextlib

from jaxformer.cli.decoding_options import search_settings
from jaxformer.cli.progress import load, progress
from jaxformer.cli.text import (
    Text,
    check_outputs,
    lines_with_prefixes,
    refuse_bad,
    report_unknown,
    writing,
)
from jaxformer.config import DataConfig, data_of
from jaxformer.data.text_files import paired
from jaxformer.evaluation.bleu_report import translation_report


def evaluate(options: argparse.Namespace) -> None:
    """Translates the source and prints the report.

    Raises:
      UserError: A file cannot be read, the numbers of lines differ, or a line is too long.
    """
    search = search_settings(options)
    names = (str(options.source), str(options.reference))
    inputs = [options.source, options.reference, options.prefixes]
    check_outputs(inputs, {"--output": options.output})
    lines = refuse_bad(lines_with_prefixes(Text(options.source), options.prefix, options.prefixes))
    pairs = list(paired(lines, refuse_bad(Text(options.reference).lines()), *names))
    references = [reference.text for _, reference in pairs]
    prefixes = [source.prefix for source, _ in pairs]
    sources = [source.text for source, _ in pairs]
    translator = load(options, search)
    report_unknown(translator.tokenizer, sources, names[0])
    output = None if options.output is None else writing(options.output)
    with output or contextlib.nullcontext() as write, progress(len(pairs)) as report_progress:
        translations = translator.translate(
            sources,
            prefixes=prefixes if any(prefixes) else None,
            name=names[0],
            report=report_progress,
        )
        if write is not None:
            write(translations)
    language = options.language or data_of(translator.config, DataConfig).target_language
    report = translation_report(translations, references, target_language=language)
    print(report.to_json() if options.json else report.table())
