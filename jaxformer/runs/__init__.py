"""Runs of any task: files, checkpoints, processes, signals and reports."""
