"""From spec strings to methods."""

from vitrail.method.base import Method
from vitrail.spec import read


def parse(spec: str | Method) -> Method:
    """The method a spec string describes.

    Example:
        >>> parse("ig(steps=20)")
        IntegratedGradients(steps=20, gradient='true')
    """
    return read(spec, Method, "ig(steps=20)")  # type: ignore[type-abstract]
