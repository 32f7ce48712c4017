"""Sources of pictures with labels: each is an ``ImageSource`` in a module of this package."""
