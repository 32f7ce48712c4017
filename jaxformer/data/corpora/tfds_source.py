"""Translation builders of TensorFlow Datasets."""

from jaxformer.data.corpus import Corpus, DataConfig, PairSource


def _open(data: DataConfig) -> Corpus:
    # TensorFlow Datasets is slow to import, and few corpora need it.
    from jaxformer.data.tfds import TfdsCorpus

    return TfdsCorpus(data.builder, data.directory, *data.languages)


TFDS = PairSource("tfds", 20, _open)
