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
from optimizer.engine.serving.fidelity import Fidelity, Probe, Readings, compare_readings, take_readings
from optimizer.engine.serving.metrics import LiveMetrics
from optimizer.engine.serving.reference_model import PRESETS, REFERENCE, TINY, ReferenceShape, make_reference_model
from optimizer.engine.serving.server import LocalServer, ServerRecord, end_recorded, reap
from optimizer.engine.serving.spec import ServerSpec, build_command
from optimizer.engine.serving.workload import BenchResult, Latency, Workload

__all__ = [
    "PRESETS",
    "REFERENCE",
    "TINY",
    "BenchCancelled",
    "BenchClient",
    "BenchFailed",
    "BenchResult",
    "Capture",
    "Endpoint",
    "Fidelity",
    "Latency",
    "LaunchConfig",
    "LiveMetrics",
    "LocalServer",
    "Probe",
    "Readings",
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
    "compare_readings",
    "end_recorded",
    "launch_configurations",
    "make_reference_model",
    "reap",
    "take_readings",
]
