"""A multi-task agent: texts, captions of pictures, and control."""
