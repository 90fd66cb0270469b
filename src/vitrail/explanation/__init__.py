"""An explanation as a value: maps with everything needed to say where they came from, drawn, saved and loaded."""

from vitrail.explanation.bundle import Bundle
from vitrail.explanation.draw import sheet_of
from vitrail.explanation.value import Explanation, versions

__all__ = ["Bundle", "Explanation", "sheet_of", "versions"]
