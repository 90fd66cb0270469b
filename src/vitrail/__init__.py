"""vitrail: see what an image classifier looks at.

>>> import vitrail
>>> picture = vitrail.scenes.make(7).pil
>>> vitrail.explain("demo", picture, method="genatt").maps.shape
torch.Size([1, 12, 12])
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.errors import InputError as InputError
    from vitrail.explanation import Explanation as Explanation
    from vitrail.front import explain as explain
    from vitrail.method import methods as methods
    from vitrail.metric import Scores as Scores
    from vitrail.metric import evaluate as evaluate
    from vitrail.metric import metrics as metrics
    from vitrail.model import Likeness as Likeness
    from vitrail.model import load as load

_HOMES = {
    "Explanation": "explanation",
    "InputError": "errors",
    "Likeness": "model",
    "Scores": "metric",
    "evaluate": "metric",
    "explain": "front",
    "load": "model",
    "methods": "method",
    "metrics": "metric",
}
_ROOMS = ("method", "metric", "model", "scenes", "show")

__all__ = [
    "Explanation",
    "InputError",
    "Likeness",
    "Scores",
    "evaluate",
    "explain",
    "load",
    "methods",
    "metrics",
    "scenes",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import vitrail`` is instant."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f"vitrail.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return importlib.import_module(f"vitrail.{name}")
    raise AttributeError(f"module 'vitrail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
