"""Start, benchmark, profile and compare real vLLM servers on this machine."""

from optimizer.engine.serving.bench import BenchClient, Endpoint
from optimizer.engine.serving.capture import Capture, capture_profile
from optimizer.engine.serving.configurations import LaunchConfig, launch_configurations
from optimizer.engine.serving.environment import ServingEnvironment
from optimizer.engine.serving.errors import (
    BenchCancelled,
    BenchFailed,
    ServerAnswered,
    ServerDied,
    ServingError,
    StartCancelled,
    StartFailed,
    StopFailed,
    WorkloadError,
)
from optimizer.engine.serving.metrics import LiveMetrics
from optimizer.engine.serving.reference_model import REFERENCE, TINY, ReferenceShape, make_reference_model
from optimizer.engine.serving.server import LocalServer, ServerRecord, end_recorded, reap
from optimizer.engine.serving.spec import ServerSpec, build_command
from optimizer.engine.serving.workload import BenchResult, Latency, Workload

__all__ = [
    "REFERENCE",
    "TINY",
    "BenchCancelled",
    "BenchClient",
    "BenchFailed",
    "BenchResult",
    "Capture",
    "Endpoint",
    "Latency",
    "LaunchConfig",
    "LiveMetrics",
    "LocalServer",
    "ReferenceShape",
    "ServerAnswered",
    "ServerDied",
    "ServerRecord",
    "ServerSpec",
    "ServingEnvironment",
    "ServingError",
    "StartCancelled",
    "StartFailed",
    "StopFailed",
    "Workload",
    "WorkloadError",
    "build_command",
    "capture_profile",
    "end_recorded",
    "launch_configurations",
    "make_reference_model",
    "reap",
]
