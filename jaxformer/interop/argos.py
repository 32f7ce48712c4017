"""Export to packages of Argos Translate, which LibreTranslate loads, too.

A package is a zip archive of one folder: a CTranslate2 model, one SentencePiece model for both
languages, and their codes.
"""

import json
import pathlib
import tempfile
import zipfile

from jaxformer.data.languages import language_name
from jaxformer.errors import UserError
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop import ctranslate2, formats
from jaxformer.interop.formats import Usage
from jaxformer.interop.model_card import languages_of

# Above each version of Argos Translate's index: if fewer than two packages are installed,
# LibreTranslate 1.9.6 replaces them at its start by newer ones of the index.
_VERSION = "1000.0"
# A date for all files, so that equal models give equal archives; zip has none before 1980.
_DATE = (1980, 1, 1, 0, 0, 0)
_CODE = """
import argostranslate.package, argostranslate.translate

argostranslate.package.install_from_path("{file}")
print(argostranslate.translate.translate("A dog runs.", "{source}", "{target}"))
"""
_NOTES = (
    "Argos Translate splits text into sentences with MiniSBD, whose model it downloads at the "
    "first translation.",
    "Argos Translate searches with a beam of 4 and a length penalty of 0.2, whatever the settings "
    "below.",
    "Characters that the vocabulary lacks are shown as codes such as `<0xE2>`, since Argos "
    "Translate only joins pieces.",
    "LibreTranslate on the same computer offers the package after a restart. Remove another "
    "package of these languages first: only one of the two is used.",
)


def write(model: TrainedModel, folder: pathlib.Path) -> Usage:
    """Writes a package, and returns how to use it.

    Raises:
      UserError: Argos Translate cannot represent the model.
    """
    source, target = _languages(model)
    tokenizer = formats.sentencepiece_models(model)
    if tokenizer.source != tokenizer.target:
        raise UserError(
            "Argos Translate: expected one vocabulary for both languages, got one for each; "
            "export ctranslate2 instead"
        )

    name = f"translate-{source}_{target}"
    file = f"{name}.argosmodel"
    # Unlike the folder of a package of the index, so that installing it overwrites no other.
    inside = pathlib.PurePosixPath(f"{name}-jaxformer")
    metadata = {
        "package_version": _VERSION,
        "argos_version": "1.9.0",
        "type": "translate",
        "from_code": source,
        "from_name": language_name(source),
        "to_code": target,
        "to_name": language_name(target),
    }

    with (
        tempfile.TemporaryDirectory(dir=folder) as model_folder,
        zipfile.ZipFile(folder / file, "w") as archive,
    ):
        ctranslate2.save_model(model, pathlib.Path(model_folder))
        for path in sorted(pathlib.Path(model_folder).iterdir()):
            _add(archive, inside / "model" / path.name, path.read_bytes())

        _add(archive, inside / "sentencepiece.model", tokenizer.source)
        _add(archive, inside / "metadata.json", json.dumps(metadata, indent=2).encode())

    return Usage(
        format="a package for Argos Translate and LibreTranslate",
        requires="argostranslate",
        code=_CODE.format(file=file, source=source, target=target),
        notes=_NOTES,
    )


def _languages(model: TrainedModel) -> tuple[str, str]:
    """Returns the codes of the source and the target language."""
    languages = languages_of(model)
    if not languages:
        raise UserError(
            f"Argos Translate: expected a model that translates, got "
            f"{model.config.kind.description}; export safetensors instead"
        )

    source, target = languages
    for code in languages:
        is_code = code.isascii() and code.isalnum()
        if not is_code:
            raise UserError(
                "Argos Translate: expected codes of languages such as en, got "
                f"{code!r:.80}; name them by data.source_language and data.target_language"
            )
    return source, target


def _add(archive: zipfile.ZipFile, name: pathlib.PurePosixPath, content: bytes) -> None:
    file = zipfile.ZipInfo(str(name), date_time=_DATE)
    file.external_attr = 0o644 << 16  # Permissions.
    archive.writestr(file, content)
