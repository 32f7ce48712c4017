"""English, German and Chinese number words."""

from jaxformer.data.corpus import PairSource
from jaxformer.data.numerals import NumeralsCorpus

NUMERALS = PairSource("numerals", 30, lambda data: NumeralsCorpus(*data.languages))
