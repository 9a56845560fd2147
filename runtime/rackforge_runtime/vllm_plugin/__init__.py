"""The vLLM plugin: puts the kernels of a verified lock in place when a process of the server starts.

vLLM runs `register` in every process, possibly more than once, and an exception here would kill the
server: nothing gets out, whatever happens the engine's own operators stay.
"""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("vllm.rackforge")
_done = False


def register() -> None:
    """Entry point of `vllm.general_plugins`."""
    global _done  # noqa: PLW0603 - once a process, however often vLLM calls
    if _done:
        return
    _done = True
    try:
        from rackforge_runtime.vllm_plugin.install import install

        install(os.environ)
    except BaseException as error:
        logger.warning("Rackforge is not active: %r", error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise


def endpoint() -> object:
    """Entry point of `vllm.endpoint_plugins`."""
    from rackforge_runtime.vllm_plugin.endpoint import ActivityEndpoint

    return ActivityEndpoint()
