"""Reports of benchmark runs: what was found, how sure it is, and how far it is what the paper found."""

from vitrail.bench.report.files import ENDINGS, Form, text, write
from vitrail.bench.report.gather import gather
from vitrail.bench.report.latex import latex
from vitrail.bench.report.longform import csv
from vitrail.bench.report.markdown import markdown
from vitrail.bench.report.page import html
from vitrail.bench.report.plots import plot
from vitrail.bench.report.result import Agreement, Cell, Heading, Result, Row, Section, Standing
from vitrail.bench.report.terminal import terminal
from vitrail.bench.report.words import cost, figure

__all__ = [
    "ENDINGS",
    "Agreement",
    "Cell",
    "Form",
    "Heading",
    "Result",
    "Row",
    "Section",
    "Standing",
    "cost",
    "csv",
    "figure",
    "gather",
    "html",
    "latex",
    "markdown",
    "plot",
    "terminal",
    "text",
    "write",
]
