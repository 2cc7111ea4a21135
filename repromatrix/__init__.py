"""Repromatrix: in which JAX, CUDA and NCCL versions does a script fail, how, and since when."""

__version__ = "0.1.0"
