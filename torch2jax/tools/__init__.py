"""The commands of the command line as Python functions that return reports.

Each takes a module or function with its inputs, ``check(model, (x,), {"mask": mask})``, or a spec instead of both,
``check("torchvision:resnet18")``.
"""

from .bisection import Bisection, Step, bisect
from .check import Check, Report, Times, check
from .files import Written, write
from .installation import Diagnosis, Finding, doctor
from .models import SpecError, Subject, TranslationError, build
from .operators import Route, operators
from .trial import Agreement, Bench, Timing, bench

__all__ = [
    "Agreement",
    "Bench",
    "Bisection",
    "Check",
    "Diagnosis",
    "Finding",
    "Report",
    "Route",
    "SpecError",
    "Step",
    "Subject",
    "Times",
    "Timing",
    "TranslationError",
    "Written",
    "bench",
    "bisect",
    "build",
    "check",
    "doctor",
    "operators",
    "write",
]
