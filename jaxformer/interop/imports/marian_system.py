"""The system Marian."""

from jaxformer.interop.systems import Importer, ImportSystem


def _importer() -> Importer:
    from jaxformer.interop.marian import importer

    return Importer(importer.import_marian, importer.FILES)


SYSTEM = ImportSystem(
    name="marian",
    help="Marian or OPUS-MT",
    place=20,
    has_languages=False,
    importer=_importer,
)
