"""The inference host's side of Rackforge: command line, pull client, launcher, vLLM plugin, candidate runner.

Imports neither Django nor (at import time) torch, so that it costs an inference server nothing.
"""

__version__ = "0.1.0"
