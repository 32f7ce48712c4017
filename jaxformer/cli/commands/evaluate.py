"""The command ``evaluate``: translates a file and scores it against a reference."""

from jaxformer import pretrained
from jaxformer.cli.command import Command
from jaxformer.cli.options import (
    InputFile,
    JsonReport,
    ModelOptions,
    OutputFile,
    SearchOptions,
    TranslatorDir,
)
from jaxformer.cli.outputs import check_outputs, open_output
from jaxformer.cli.text import (
    PrefixOptions,
    checked_lines,
    progress_bar,
    read_text,
    report_unknown,
)
from jaxformer.files import STDOUT


def evaluate(
    *,
    workdir: TranslatorDir = pretrained.WORKDIR,
    source: InputFile,
    reference: InputFile,
    output: OutputFile | None = None,
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

    outputs = {"the report": STDOUT, "--output": output}
    check_outputs([source, reference, forced.prefixes], outputs)
    text = forced.text(source).zip_with(read_text(reference), "gold")
    lines = list(checked_lines(text, lambda line: None, strict=True))

    translator = model.load(workdir, search.settings(workdir))
    report_unknown(translator.tokenizer, lines, text.name)
    with open_output(output) as write, progress_bar(len(lines)) as bar:
        translations = translator.translate(
            [line.text for line in lines],
            prefixes=forced.prefixes_of(lines),
            name=text.name,
            report=bar.update,
        )
        write(translations)

    if not language:
        language = data_section(translator.config, DataConfig).target_language
    references = [line.gold for line in lines]
    scores = translation_report(translations, references, target_language=language)
    print(scores.to_json() if json else scores.table())


COMMAND = Command("evaluate", evaluate, place=60)
