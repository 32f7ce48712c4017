"""Files of sentence pairs."""

from jaxformer.data.corpus import PairSource
from jaxformer.data.file_corpora import (
    CsvCorpus,
    JsonlCorpus,
    ParquetCorpus,
    TextCorpus,
    TsvCorpus,
)
from jaxformer.data.translation_memories import TmxCorpus, XliffCorpus

TEXT = PairSource("text", 10, lambda data: TextCorpus(*data.languages))
PARQUET = PairSource(
    "parquet",
    50,
    lambda data: ParquetCorpus(*data.names_of_columns()),
    has_columns=True,
)
JSONL = PairSource(
    "jsonl",
    60,
    lambda data: JsonlCorpus(*data.names_of_columns()),
    has_columns=True,
)
TSV = PairSource("tsv", 70, lambda data: TsvCorpus(*data.languages))
CSV = PairSource(
    "csv",
    80,
    lambda data: CsvCorpus(*data.names_of_columns()),
    has_columns=True,
)
TMX = PairSource("tmx", 90, lambda data: TmxCorpus(*data.languages))
XLIFF = PairSource("xliff", 100, lambda data: XliffCorpus(*data.languages))
