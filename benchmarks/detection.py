"""Mask R-CNN from the image to the masks, as one jitted program and with compiled parts, against PyTorch.

    python -m benchmarks.detection [--rounds 3]

The one program has room for as many boxes as the model may find, and computes masks for all of that room.

A ResNet-50 with random weights, on a small image. torchvision's compiled library does not load beside a CPU build of
PyTorch, and what stands in for it (`tests/torchvision_library.py`) is slow: the time within it is taken off PyTorch's.
So the ratio is an upper bound. Beside it stand the parts alone, which are nearly all convolutions, as jitted programs
and in PyTorch. Times are processor time, the best of the rounds.
"""

import argparse
import time
from collections.abc import Callable
from unittest import mock

import jax
import numpy as np
import torch

from tests.torchvision_library import loaded
from torch2jax import t2j

HEADS = ("box_head", "box_predictor", "mask_head", "mask_predictor")
PARTS = ["backbone", "rpn.head", *(f"roi_heads.{name}" for name in HEADS)]
WARMUP = 4  # calls, until everything that recurs is compiled


def mask_rcnn():
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    torch.manual_seed(0)
    sizes = {"min_size": 128, "max_size": 160, "rpn_pre_nms_top_n_test": 100, "rpn_post_nms_top_n_test": 30}
    classes = {"num_classes": 5, "box_score_thresh": 0.21}
    return maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, **sizes, **classes).eval()


class Library:
    """Measures the time within torchvision's operators."""

    def __init__(self):
        self.seconds = 0.0

    def measured(self, function):
        def run(*args):
            began = time.process_time()
            try:
                return function(*args)
            finally:
                self.seconds += time.process_time() - began

        return run

    def measuring(self):
        operators = {name: self.measured(getattr(torch.ops.torchvision, name)) for name in ("nms", "roi_align")}
        return mock.patch.multiple(torch.ops.torchvision, **operators)


def parts_alone(model, image: torch.Tensor) -> tuple[Callable, Callable]:
    """What time the parts take by themselves, on what they get for an image: as one program each, and in PyTorch."""
    given, hooks = {}, []
    for name in PARTS:
        part = model.get_submodule(name)
        hooks.append(part.register_forward_pre_hook(lambda part, args: given.update({part: args})))
    model([image])
    for hook in hooks:
        hook.remove()
    programs = [(jax.jit(t2j(part)), t2j(args), t2j(part.state_dict())) for part, args in given.items()]

    def run() -> None:
        for program, args, state in programs:
            jax.block_until_ready(program(*args, state_dict=state))

    def compiled() -> float:
        began = time.process_time()
        run()
        return time.process_time() - began

    def eager() -> float:
        began = time.process_time()
        for part, args in given.items():
            part(*args)
        return time.process_time() - began

    run()
    return compiled, eager


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with loaded(), torch.no_grad():
        model, image = mask_rcnn(), torch.rand(3, 96, 128)
        library, detect = Library(), t2j(model, compile=PARTS)
        state, array = t2j(model.state_dict()), t2j(image)

        def pytorch():
            before = library.seconds
            began = time.process_time()
            with library.measuring():
                (found,) = model([image])
            return found, time.process_time() - began - (library.seconds - before)

        def timed(function):
            began = time.process_time()
            (found,) = jax.block_until_ready(function([array], state_dict=state))
            return found, time.process_time() - began

        program = jax.jit(t2j(model))
        (expected, _), (by_parts, first), (at_once, first_at_once) = pytorch(), timed(detect), timed(program)
        for name, want in expected.items():
            for found in (by_parts[name], at_once[name].compact()):
                np.testing.assert_allclose(found, want, 1e-3, 1e-2, err_msg=name)
        for _ in range(WARMUP):
            timed(detect)
        ways = (lambda: timed(program)[1], lambda: timed(detect)[1], lambda: pytorch()[1], *parts_alone(model, image))
        times = [[way() for way in ways] for _ in range(options.rounds)]
        whole, parts, theirs, compiled, eager = (min(column) for column in zip(*times, strict=True))
        room = len(at_once["boxes"].values)
        print(f"boxes: {len(expected['boxes'])}, with room for {room}\n")
        print("| program | first call (s) | translated (s) | PyTorch (s) | ratio |\n|---|---|---|---|---|")
        for name, seconds, a, b in (
            ("one program", f"{first_at_once:.0f}", whole, theirs),
            ("compiled parts", f"{first:.0f}", parts, theirs),
            ("the parts alone", "", compiled, eager),
        ):
            print(f"| {name} | {seconds} | {a:.2f} | {b:.2f} | {a / b:.2f} |", flush=True)


if __name__ == "__main__":
    main()
