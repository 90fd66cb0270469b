"""An explanation as a value: maps with everything needed to say where they came from, drawn, saved and loaded."""

from vitrail.explanation.bundle import Bundle
from vitrail.explanation.draw import sheet_of
from vitrail.explanation.value import Explanation, check_writable, versions, write_whole

__all__ = ["Bundle", "Explanation", "check_writable", "sheet_of", "versions", "write_whole"]
