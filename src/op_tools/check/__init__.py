"""Checks of calls whose cost does not grow with their tensors."""
