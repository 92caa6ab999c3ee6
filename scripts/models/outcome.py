"""What became of a model, as a line of `docs/models.md`, which is where outcomes are kept."""

import dataclasses

__all__ = ["HEAD", "Outcome", "library_of"]

HEAD = "| model | parameters | forward | gradients | trace s | compile s | operations | TPU | what fails |"
_LIMITS = ("TimeoutError: more than", "the process ended", "MemoryError", "RESOURCE_EXHAUSTED")


def library_of(spec: str) -> str:
    """The library of a model: what its spec names, or, where that is a module of ours, diffusers."""
    library = spec.partition(":")[0]
    return "diffusers" if "." in library else library


@dataclasses.dataclass
class Outcome:
    """One model, run once.

    Attributes:
        spec: as ``torch2jax check`` takes it.
        parameters: how many.
        forward: the largest difference of an output, relative to its largest element; None where there is none.
        gradient: the same for gradients.
        trace: seconds, of the forward pass.
        compile: seconds, of the forward pass.
        operations: of StableHLO, in the forward pass.
        exports: whether it exports for TPU.
        pytorch: whether PyTorch runs it here, and so whether it counts.
        failure: what did not come out as it should, or why PyTorch does not run it.
    """

    spec: str
    parameters: int = 0
    forward: float | None = None
    gradient: float | None = None
    trace: float | None = None
    compile: float | None = None
    operations: int | None = None
    exports: bool = False
    pytorch: bool = True
    failure: str = ""

    @property
    def library(self) -> str:
        return library_of(self.spec)

    @property
    def agrees(self) -> bool:
        return self.pytorch and not self.failure

    @property
    def ran_out(self) -> bool:
        """Whether it came to the end of its time, or of its memory."""
        return any(word in self.failure for word in _LIMITS)

    def row(self) -> str:
        """The line of the table."""
        numbers = (
            f"{self.parameters:,}" if self.parameters else "",
            *("" if x is None else f"{x:.0e}" for x in (self.forward, self.gradient)),
            *("" if x is None else f"{x:.1f}" for x in (self.trace, self.compile)),
            "" if self.operations is None else f"{self.operations:,}",
            "yes" if self.exports else "",
        )
        failure = self.failure.replace("|", "/").replace("`", "'").replace("\n", " ")
        why = f"{'' if self.pytorch else 'PyTorch: '}`{failure}`" if failure else ""
        return f"| {' | '.join([f'`{self.spec}`', *numbers, why])} |"

    @classmethod
    def read(cls, row: str) -> "Outcome":
        """The outcome of a line of the table."""
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        spec, parameters, forward, gradient, trace, compile_, operations, exports, failure = cells

        def number(text: str, kind: type = float):
            return kind(text.replace(",", "")) if text else None

        return cls(
            spec.strip("`"),
            number(parameters, int) or 0,
            *map(number, (forward, gradient, trace, compile_)),
            number(operations, int),
            bool(exports),
            not failure.startswith("PyTorch: "),
            failure.removeprefix("PyTorch: ").strip("`"),
        )
