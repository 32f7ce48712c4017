"""Plots of learning curves and of attention weights."""
