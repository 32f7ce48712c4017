"""Speech: its recognition."""
