"""The system of Hugging Face's library transformers."""

from jaxformer.interop.systems import Importer, ImportSystem


def _importer() -> Importer:
    from jaxformer.interop.huggingface import importer

    return Importer(importer.import_huggingface, importer.FILES)


SYSTEM = ImportSystem(
    name="hf",
    help="BART, BERT, BERT2BERT, Blenderbot, GPT-2, LLaMA, LongT5, M2M-100, mBART, Mistral, mT5, "
    "NLLB, PEGASUS, Qwen2, Qwen3, T5, umT5 or ViT, as transformers saves them",
    place=10,
    has_languages=True,
    importer=_importer,
)
