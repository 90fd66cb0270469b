"""How far do MDA's maps move when the machine rounds otherwise, or sorts ties otherwise?

    python benchmarks/mda_rounding.py --checkpoint deit_tiny.safetensors --images DIR [--count 2] [--method SPEC]

The method, ``mda(compat=authors)`` by default, runs as it is in float32 and then with one thing changed at a time: in
float64; with the patch embedding in TF32, which a GPU of today does by itself; with every dense layer in TF32; in bf16;
with the pixels of a patch in numpy's usual order. Each is compared with the first: the ten best patches in common, the
patches at the same place of the order, and Pearson's correlation of the maps with whole cells and smooth.
"""

import argparse
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail.explanation import Explanation
from vitrail.method import MDA
from vitrail.method.mda import authors as mda_authors
from vitrail.model import Precision, View


def tf32(values: Tensor) -> Tensor:
    """The nearest values with the ten binary digits that a TF32 product reads of its factors."""
    bits = values.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def rounded(view: View, kinds: tuple[type[nn.Module], ...]) -> View:
    """The same model whose layers of these kinds round both factors, as a GPU's tensor cores do."""
    model = copy.deepcopy(view.model)
    for module in model.modules():
        if isinstance(module, kinds):
            with torch.no_grad():
                module.weight.copy_(tf32(module.weight))
            module.register_forward_pre_hook(lambda _, given: (tf32(given[0]), *given[1:]))
    return vitrail.load(model)


@contextmanager
def usual_order() -> Iterator[None]:
    mda_authors.STABLE = False
    try:
        yield
    finally:
        mda_authors.STABLE = True


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.double().flatten(), other.double().flatten()]))[0, 1])


def compared(found: Explanation, first: Explanation, method: MDA) -> str:
    orders = [e.extras["order"][0] for e in (first, found)]
    common = len(set(orders[0][:10].tolist()) & set(orders[1][:10].tolist()))
    same = float((orders[0] == orders[1]).double().mean())
    words = [f"{common} of the ten best in common", f"{100 * same:.0f} % of all in place"]
    for form in ("whole", "smooth"):
        drawn = replace(method, enlarged=form)
        words.append(f"Pearson {form} {correlation(*(drawn.enlarge(e.maps, e.size) for e in (first, found))):.4f}")
    return ", ".join(words)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--images", type=Path, required=True)
    options.add_argument("--model", default="timm/deit_tiny_patch16_224")
    options.add_argument("--method", default="mda(compat=authors)")
    options.add_argument("--count", type=int, default=2)
    given = options.parse_args()
    method = vitrail.method.parse(given.method)
    assert isinstance(method, MDA)
    view = vitrail.load(given.model, given.checkpoint)
    print(f"{given.method} on {view.name}, {view.device}, torch {torch.__version__}", flush=True)
    variants: dict[str, tuple[Callable[[], View], Precision, Callable[[], AbstractContextManager[Any]]]] = {
        "float64": (lambda: vitrail.load(copy.deepcopy(view.model).double()), "fp32", nullcontext),
        "patch embedding in TF32": (lambda: rounded(view, (nn.Conv2d,)), "fp32", nullcontext),
        "dense layers in TF32": (lambda: rounded(view, (nn.Conv2d, nn.Linear)), "fp32", nullcontext),
        "bf16": (lambda: view, "bf16", nullcontext),
    }
    if method.compat == "authors":
        variants["numpy's order of equal pixels"] = (lambda: view, "fp32", usual_order)
    for path in sorted(given.images.iterdir())[: given.count]:
        inputs = view.preprocess.batch([path])
        first = vitrail.explain(view, inputs, method, progress=False)
        sure = float(first.logits.softmax(1).max())
        print(f"{path.name}: {first.explained(0)}, {sure:.3f}, {first.seconds:.0f} s", flush=True)
        for name, (make, precision, context) in variants.items():
            other = make()
            with context():
                found = vitrail.explain(
                    other, inputs.to(other.dtype), method, first.classes, precision=precision, progress=False
                )
            print(f"  {name}: {compared(found, first, method)}", flush=True)


if __name__ == "__main__":
    main()
