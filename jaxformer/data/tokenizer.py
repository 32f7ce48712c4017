"""SentencePiece byte-pair encoding with one vocabulary for both languages (section 5.1)."""

import hashlib
import importlib.metadata
import io
import pathlib
import random
import re
from collections.abc import Iterable, Iterator, Sequence

from jaxformer.data.corpus import Corpus
from jaxformer.data.files import write_file
from jaxformer.errors import UserError

PAD, EOS, BOS, UNK = 0, 1, 2, 3
