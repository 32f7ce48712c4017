"""The command ``evaluate``: translates a file and scores it against a reference."""

from jaxformer import pretrained
from jaxformer.cli.options import File, JsonReport, ModelOptions, SearchOptions, TranslatorDir
from jaxformer.cli.text import (
    PrefixOptions,
    check_outputs,
    checked,
    progress,
    read_text,
    report_unknown,
    writing,
)


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
    from jaxformer.config import DataConfig, data_section
    from jaxformer.evaluation.bleu_report import translation_report

    check_outputs([source, reference, forced.prefixes], {"--output": output})
    text = forced.text(source).beside(read_text(reference), "gold")
    lines = list(checked(text, lambda line: None, strict=True))
    translator = model.load(workdir, search.settings(workdir))
    report_unknown(translator.tokenizer, lines, text.name)
    with writing(output) as write, progress(len(lines)) as bar:
        translations = translator.translate(
            [line.text for line in lines],
            prefixes=forced.of(lines),
            name=text.name,
            report=bar.update,
        )
        write(translations)
    scores = translation_report(
        translations,
        [line.gold for line in lines],
        target_language=language or data_section(translator.config, DataConfig).target_language,
    )
    print(scores.to_json() if json else scores.table())
