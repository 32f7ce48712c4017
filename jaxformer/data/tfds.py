"""Translation corpora from TensorFlow Datasets, such as WMT14. Reading needs no TensorFlow."""

import hashlib
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds
import tensorflow_datasets.translate  # Registers wmt14_translate and others.

from jaxformer.data.tokenizer import sha256_of_json
from jaxformer.errors import UserError
