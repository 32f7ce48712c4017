"""Trains any task (section 5): loss, optimizer, data-parallel step, loop and reports."""
