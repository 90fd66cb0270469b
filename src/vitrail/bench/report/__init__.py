"""Reports of benchmark runs: what was found, how sure it is, and how far it is what the paper found."""

from vitrail.bench.report.as_csv import csv
from vitrail.bench.report.as_html import html
from vitrail.bench.report.as_latex import latex
from vitrail.bench.report.as_markdown import markdown
from vitrail.bench.report.as_terminal import terminal
from vitrail.bench.report.files import ENDINGS, Form, text, write
from vitrail.bench.report.gathering import gather
from vitrail.bench.report.plots import plot
from vitrail.bench.report.result import Agreement, Cell, Heading, Result, Row, Section, Standing
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
