"""Runs, whatever they train: files, checkpoints, processes, signals and reports."""
