"""What is done in each stage of a campaign; adding a stage is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from optimizer.context import Handler
from optimizer.states import StepKind
from optimizer.steps import (
    aa,
    ab,
    baseline,
    confirm,
    judge,
    optimize,
    prepare,
    profiling,
    register,
    report,
    stack,
    targets,
)

HANDLERS: Mapping[StepKind, Handler] = {
    StepKind.PREPARE: prepare.run,
    StepKind.BASELINE: baseline.run,
    StepKind.AA: aa.run,
    StepKind.PROFILE: profiling.run,
    StepKind.TARGETS: targets.run,
    StepKind.OPTIMIZE: optimize.run,
    StepKind.JUDGE: judge.run,
    StepKind.AB: ab.run,
    StepKind.CONFIRM: confirm.run,
    StepKind.REGISTER: register.run,
    StepKind.STACK: stack.run,
    StepKind.REPORT: report.run,
}
