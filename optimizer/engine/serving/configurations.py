"""The declared launch configurations of a server: the best of them, measured, is the baseline.

What vLLM 0.32 makes of the thread binding, seen in its log ("OpenMP thread binding info") on two cores:

- VLLM_CPU_OMP_THREADS_BIND=auto: one thread for each physical core of one memory node (the highest logical
  processor of each core), less one core reserved for the scheduler and the API server. Two cores: one thread,
  on core 0, core 1 reserved. VLLM_CPU_NUM_OF_RESERVED_CPU changes the number reserved (0 gives a warning and
  one thread on each core); it counts under auto only.
- A list such as 0,1: one thread on each of those, nothing reserved.
- nobind: OpenMP's own default, threads unpinned, as many as OMP_NUM_THREADS says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from optimizer.engine.serving.spec import ServerSpec
from rackforge_runtime.facts import HostFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """One way to launch, independent of the model."""

    name: str
    enforce_eager: bool
    threads_bind: str

    def apply(self, spec: ServerSpec) -> ServerSpec:
        """The spec launched this way."""
        return replace(spec, enforce_eager=self.enforce_eager, threads_bind=self.threads_bind)


def launch_configurations(facts: HostFacts) -> tuple[LaunchConfig, ...]:
    """Compiled and eager, each with vLLM's own thread binding and with all cores of one memory node.

    The all-core list stays within one memory node, as vLLM's own binding does: one worker that reads its
    weights across nodes is slower than one that leaves cores idle. On a single core both bindings are the
    same and only vLLM's own is listed. On a host with a GPU threads do not matter.
    """
    bindings = [("auto", "auto")]
    first = min((c.node for c in facts.cpus), default=0)
    here = {c.id for c in facts.cpus if c.node == first}
    cores = [cpu for cpu in facts.core_cpus if cpu in here]
    if len(cores) > 1 and not facts.gpus:
        bindings.append(("all-cores", ",".join(map(str, cores))))
    return tuple(
        LaunchConfig(name=f"{mode}/{name}", enforce_eager=mode == "eager", threads_bind=bind)
        for mode in ("compiled", "eager")
        for name, bind in bindings
    )
