"""The system of Hugging Face's library transformers."""

from jaxformer.interop.systems import Importer, ImportSystem


def _importer() -> Importer:
    from jaxformer.interop.huggingface import importer

    return Importer(importer.import_huggingface, importer.FILES)


SYSTEM = ImportSystem(
    name="hf",
    help="BART, BERT, BLOOM, Gemma, GPT-2, LLaMA, Longformer, mBART, NLLB, OPT, PEGASUS, RoBERTa, "
    "T5, ViT and their relatives, as transformers saves them",
    place=10,
    has_languages=True,
    importer=_importer,
)
