"""Sources of pictures with texts: each is an ``ImageTextSource`` in a module of this package."""
