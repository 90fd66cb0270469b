"""``vitrail scenes``: pictures to try things on, without a download."""

import csv
import io
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.options import Quiet, say
from vitrail.errors import InputError, option

if TYPE_CHECKING:
    from numpy.typing import NDArray


LABELS = "labels.csv"

HEAD = ["file", "class", "boxes", "mask"]
"""Its columns."""


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """Draw scenes that the demo model knows, as picture files, with their classes, boxes and masks.

    Example: vitrail scenes --count 4 --out scenes
    """

    out: Path = Path("scenes")
    """Where to write the folders pictures and masks, and the table labels.csv; scenes drawn there before go."""
    count: int = 8
    """How many scenes."""
    objects: Literal[1, 2] = 1
    """Things in a scene; the class, the box and the mask are those of the first one."""
    seed: int = 3
    """Another seed draws others; the networks that come with vitrail have learned from seeds 0 and 1."""
    quiet: Quiet = False

    def run(self) -> None:
        """Draw, write, and say how to go on."""
        import numpy as np
        from PIL import Image

        from vitrail.data import dataset
        from vitrail.files import check_writable, write_text, write_whole

        for name, least in (("count", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{option(name)} must be {least} or more, but {getattr(self, name)} was given")
        check_writable(self.out)
        before = _written(self.out / LABELS)
        items = dataset(f"scenes:{self.count},seed={self.seed},objects={self.objects}").items
        digits = max(3, len(str(len(items) - 1)))
        rows = [HEAD]
        for i, item in enumerate(items):
            picture, mask = item.picture(), item.mask()
            assert isinstance(picture, Image.Image)
            assert mask is not None
            files = [f"{folder}/{i:0{digits}d}.png" for folder in ("pictures", "masks")]
            for path, drawn in zip(files, (picture, Image.fromarray(np.where(mask == 1, 255, 0).astype(np.uint8)))):
                write_whole(self.out / path, partial(drawn.save, format="PNG"))
            rows.append([files[0], str(item.label), " ".join(map(str, _box(mask))), files[1]])
        for name in before - {cell for row in rows for cell in row}:
            (self.out / name).unlink(missing_ok=True)
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        write_text(self.out / LABELS, text.getvalue())
        say(f"pictures: {self.out / 'pictures'}; classes, boxes and masks: {self.out / LABELS}", self.quiet)


def _written(labels: Path) -> set[str]:
    """The pictures and masks that an earlier ``vitrail scenes`` wrote, as its own table has them."""
    try:
        with labels.open(newline="", encoding="utf-8") as file:
            head, *rows = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error):
        return set()
    named = {cell for row in rows for cell in row if re.fullmatch(r"(pictures|masks)/\d{3,}\.png", cell)}
    return named if head == HEAD else set()


def _box(mask: "NDArray[Any]") -> tuple[int, int, int, int]:
    """The smallest box around an object, x0 y0 x1 y1."""
    import numpy as np

    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
