"""Files of sentence pairs."""

from jaxformer.data.corpus import PairSource
from jaxformer.data.file_corpora import JsonlCorpus, ParquetCorpus, TextCorpus, TsvCorpus

TEXT = PairSource("text", 10, lambda data: TextCorpus(*data.languages))
PARQUET = PairSource("parquet", 50, lambda data: ParquetCorpus(*data.languages))
JSONL = PairSource("jsonl", 60, lambda data: JsonlCorpus(*data.languages))
TSV = PairSource("tsv", 70, lambda data: TsvCorpus(*data.languages))
