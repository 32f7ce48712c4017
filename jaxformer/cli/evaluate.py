"""The command ``evaluate``: translates a file and scores it against a reference."""

import argparse

from jaxformer.cli.decoding_options import search_settings
from jaxformer.cli.progress import load, progress
from jaxformer.cli.text import Text, check_outputs, lines_with_prefixes, paired, refuse_bad
from jaxformer.config import sentence_pairs
from jaxformer.data.text_files import read_file
from jaxformer.evaluation.bleu_report import translation_report
from jaxformer.files import write_file


def evaluate(options: argparse.Namespace) -> None:
    """Translates the source and prints the report.

    Raises:
      UserError: A file cannot be read, the numbers of lines differ, or a line is too long.
    """
    search = search_settings(options)
    names = (str(options.source), str(options.reference))
    inputs = [options.source, options.reference, options.prefixes]
    check_outputs(inputs, {"--output": options.output})
    lines = lines_with_prefixes(Text(options.source), options.prefix, options.prefixes)
    sources = list(refuse_bad(lines))
    texts = [line.text for line in sources]
    references = [r for _, r in paired(iter(texts), read_file(options.reference), *names)]
    prefixes = [line.prefix for line in sources]
    translator = load(options, search)
    with progress(len(sources)) as report_progress:
        translations = translator.translate(
            texts,
            prefixes=prefixes if any(prefixes) else None,
            name=names[0],
            report=report_progress,
        )
    if options.output is not None:
        write_file(options.output, "".join(f"{t}\n" for t in translations).encode())
    language = options.language or sentence_pairs(translator.config).target_language
    report = translation_report(translations, references, target_language=language)
    print(report.to_json() if options.json else report.table())
