"""Transforms of programs while they are recorded: gradients, and maps over an axis."""
