"""Kernels, versions, channels, keys."""
