"""What is answered to a model's questions about values, where the other side cannot be translated, and why."""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ANSWERS", "answers_of"]


class Answers(NamedTuple):
    """For one model.

    Attributes:
        answers: by places, as ``t2j(..., branches=...)`` takes them.
        reason: what is asked there.
    """

    answers: Mapping[str, bool]
    reason: str

    def __str__(self) -> str:
        return ", ".join(f"`{place}={answer}`" for place, answer in self.answers.items())


_GLOBAL_ATTENTION = "whether the mask gives a token global attention: if so, the code goes on with the places of these"

ANSWERS = {
    "transformers:led": Answers({"modeling_led.py:forward": False}, _GLOBAL_ATTENTION),
    "transformers:longformer": Answers({"modeling_longformer.py:forward": False}, _GLOBAL_ATTENTION),
}


def answers_of(spec: str) -> Mapping[str, bool]:
    """The answers for a model, mostly none."""
    return ANSWERS[spec].answers if spec in ANSWERS else {}
