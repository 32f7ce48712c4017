"""Arrays in, a PNG out: learning curves and attention maps."""
