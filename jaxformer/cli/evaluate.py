"""The command ``evaluate``: translates a file and scores it against a reference."""

from jaxformer import pretrained
from jaxformer.cli.options import File, JsonReport, ModelOptions, SearchOptions, TranslatorDir
from jaxformer.cli.text import (
    PrefixOptions,
    Text,
    check_outputs,
    progress,
    refuse_bad,
    report_unknown,
    writing_if_named,
)
from jaxformer.data.text_files import paired


def evaluate(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    source: File,
    reference: File,
    output: File | None = None,
    language: str | None = None,
    json: JsonReport = False,
    model: ModelOptions,
    search: SearchOptions,
    forced: PrefixOptions,
) -> None:
    """Translate a file and score the translations against a reference.

    Text:
      source: text to translate
      reference: reference translation
      output: also write the translations to FILE
      language (CODE): target language, for the metrics' tokenizers (default: the run's)

    Example:
      jaxformer evaluate --workdir runs/multi30k --source test.en --reference test.de
    """
    from jaxformer.config import DataConfig, data_of
    from jaxformer.evaluation.bleu_report import translation_report

    settings = search.settings(workdir)
    check_outputs([source, reference, forced.prefixes], {"--output": output})
    lines, references = forced.lines(Text(source)), Text(reference).lines()
    names = (str(source), str(reference))
    pairs = list(paired(refuse_bad(lines), refuse_bad(references), *names))
    sources = [line.text for line, _ in pairs]
    prefixes = [line.prefix for line, _ in pairs]
    translator = model.load(workdir, settings)
    report_unknown(translator.tokenizer, sources, names[0])
    with writing_if_named(output) as write, progress(len(pairs)) as report:
        translations = translator.translate(
            sources,
            prefixes=prefixes if any(prefixes) else None,
            name=names[0],
            report=report,
        )
        if write is not None:
            write(translations)
    scores = translation_report(
        translations,
        [line.text for _, line in pairs],
        target_language=language or data_of(translator.config, DataConfig).target_language,
    )
    print(scores.to_json() if json else scores.table())
