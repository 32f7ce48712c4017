"""The system Bergamot."""

from jaxformer.interop.systems import Importer, ImportSystem


def _importer() -> Importer:
    from jaxformer.interop.bergamot import importer

    return Importer(importer.import_bergamot, files=None)


SYSTEM = ImportSystem(
    name="bergamot",
    help="a translation model of Firefox",
    place=30,
    has_languages=False,
    importer=_importer,
)
