"""Classification of texts, and pretraining on masked tokens."""
