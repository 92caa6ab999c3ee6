"""What became of a model, as a line of `docs/tested/models.md`, which is where outcomes are kept."""

import dataclasses

__all__ = ["HEAD", "Outcome", "library_of"]

HEAD = "| model | parameters | forward | gradients | trace s | compile s | operations | TPU | what fails |"
_PYTORCH, _BUT = "PyTorch: ", "but "
# What libraries say that cannot have their memory: NumPy, XLA, its YNNPACK, PyTorch, its oneDNN.
_MEMORY = ("MemoryError", "RESOURCE_EXHAUSTED", "YNNPACK", "alloc_cpu", "could not create a primitive")
_LIMITS = ("TimeoutError: more than", "the process ended", *_MEMORY)


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
        note: what differs as PyTorch computes it, but not in double precision, or by a formula that PyTorch gets wrong;
            the differences above are then those.
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
    note: str = ""

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
        text = (self.failure or self.note).replace("|", "/").replace("`", "'").replace("\n", " ")
        kind = _BUT if not self.failure else "" if self.pytorch else _PYTORCH
        why = f"{kind}`{text}`" if text else ""
        return f"| {' | '.join([f'`{self.spec}`', *numbers, why])} |"

    @classmethod
    def read(cls, row: str) -> "Outcome":
        """The outcome of a line of the table."""
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        spec, parameters, forward, gradient, trace, compile_, operations, exports, why = cells
        text = why.removeprefix(_PYTORCH).removeprefix(_BUT).strip("`")
        is_note = why.startswith(_BUT)

        def number(text: str, kind: type = float):
            return kind(text.replace(",", "")) if text else None

        return cls(
            spec.strip("`"),
            number(parameters, int) or 0,
            *map(number, (forward, gradient, trace, compile_)),
            number(operations, int),
            bool(exports),
            not why.startswith(_PYTORCH),
            "" if is_note else text,
            text if is_note else "",
        )
