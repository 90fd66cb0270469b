"""The oldest versions that pyproject.toml allows, as constraints for pip: ``python tools/oldest.py > oldest.txt``.

`make test-oldest` installs them and runs the core of the tests, so that the lower bounds are true.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
BOUND = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?>=(?P<version>[\d.]+)")


def oldest(project: dict) -> Iterator[str]:
    """``name==version`` for every dependency, those of the extras too. One without a lower bound is an error."""
    extras = project["optional-dependencies"].values()
    for requirement in [*project["dependencies"], *(one for extra in extras for one in extra)]:
        if requirement.startswith(project["name"]):  # an extra made of others
            continue
        bound = BOUND.fullmatch(requirement)
        if bound is None:
            raise SystemExit(f"{requirement!r} in {PROJECT.name} must say its lowest version, and only that: name>=1.2")
        yield f"{bound['name']}=={bound['version']}"


if __name__ == "__main__":
    print("\n".join(oldest(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"])))
