"""Pictures in ``.npz`` files: ``data.corpus=images``."""

from jaxformer.data.images import ImageSource, read_npz

NPZ = ImageSource("images", place=10, read=lambda data, name, form: read_npz(name))
