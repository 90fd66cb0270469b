"""LaTeX: a booktabs table for each part, to be put into a paper with input."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from vitrail.bench.report.result import Cell, Heading, Result, Row, Section
from vitrail.bench.report.words import Notes, closing, cost, figure, marks, mean_rank, notes, published, typeset

WIDE = 6
"""Tables of more columns span both columns of a page, in smaller letters."""

GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "mu", "rho", "sigma", "tau")

SIGNS = {
    **{sign: f"\\{sign}" for sign in "{}&%$#_"},
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # behind a line's end they would be taken for its options
    **{unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"$\{name}$" for name in GREEK},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": "--",
    "\N{EM DASH}": "---",
    "\N{GREEK SMALL LETTER LAMDA}": r"$\lambda$",
}
"""What LaTeX reads as commands, and signs that its usual fonts lack."""

END = r" \\"


def latex(result: Result, plots: Mapping[str, str] | None = None) -> str:
    """The result as LaTeX tables; the paper's numbers stand on a line of their own below each method's.

    Args:
        result: What a run found.
        plots: Where the pictures of sweeps are, by the part's name.
    """
    packages = "booktabs, graphicx" if plots else "booktabs"
    lines = [rf"% needs \usepackage{{{packages}}}"]
    for section in result.sections:
        lines += ["", *_table(result, section, (plots or {}).get(section.name))]
    return "\n".join([*lines, ""])


def escape(text: str) -> str:
    r"""Words that LaTeX sets as they are.

    Example:
        >>> print(escape("50% of a_b"))
        50\% of a\_b
    """
    words = re.sub(r"\s+", " ", text)
    return "".join(SIGNS.get(sign, sign) for sign in words if sign.isprintable())


def _table(result: Result, section: Section, plot: str | None) -> Iterator[str]:
    wide = len(section.headings) > WIDE
    kind, letters, gap = ("table*", r"\scriptsize", "3pt") if wide else ("table", r"\small", "5pt")
    label = re.sub(r"[^A-Za-z0-9]+", "-", f"{result.name}-{section.name}").strip("-")
    yield rf"\begin{{{kind}}}[tp]"
    yield r"\centering"
    yield rf"\caption{{{_caption(result, section)}}}"
    yield rf"\label{{tab:{label}}}"
    if plot:
        yield rf"\includegraphics[width=\linewidth]{{{plot}}}\par\medskip"
    yield rf"{letters}\setlength{{\tabcolsep}}{{{gap}}}"
    yield from _tabular(section)
    yield r"\par\medskip"
    yield r"\begin{minipage}{\linewidth}\scriptsize\raggedright"
    yield from _notes([*notes(section), *closing(result)])
    yield r"\end{minipage}"
    yield rf"\end{{{kind}}}"


def _caption(result: Result, section: Section) -> str:
    where = f" ({section.name})" if len(result.sections) > 1 else ""
    shown = {"bold": r"\textbf{bold}", "underlined": r"\underline{underlined}"}
    said = typeset(marks("`bold`", "`underlined`"), escape, shown.__getitem__)
    return f"{escape(result.title.rstrip('.') + where)}. {said}"


def _tabular(section: Section) -> Iterator[str]:
    ranked = len(section.headings) > 1
    heads = [escape(heading.name) for heading in section.headings]
    more = [*(["rank"] if ranked else []), "s/image", "forwards", "backwards"]
    places = "r" * (len(heads) + len(more))
    yield rf"\begin{{tabular}}{{l{places}}}"
    yield r"\toprule"
    yield " & ".join(["method", *heads, *more]) + END
    yield r"\midrule"
    ours = next((i for i, row in enumerate(section.rows) if row.ours), 0)
    for i, row in enumerate(section.rows):
        if i and i == ours:
            yield r"\midrule"
        cells = [_cell(cell, heading) for cell, heading in zip(row.cells, section.headings)]
        costs = [*([mean_rank(row)] if ranked else []), *map(cost, (row.seconds, row.forwards, row.backwards))]
        yield " & ".join([escape(row.label), *cells, *map(escape, costs)]) + END
        if any(cell.published is not None for cell in row.cells):
            yield _paper_line(row, section.headings, len(more))
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _cell(cell: Cell, heading: Heading) -> str:
    text = escape(figure(cell.value, heading.decimals))
    if not cell.known:
        return text
    text = rf"\textbf{{{text}}}" if cell.best else rf"\underline{{{text}}}" if cell.tied else text
    return rf"{text}\,{{\tiny$\pm${figure(cell.half, heading.decimals)}}}"


def _paper_line(row: Row, headings: Sequence[Heading], more: int) -> str:
    texts = ["paper", *map(published, row.cells, headings)]
    small = [rf"{{\scriptsize\itshape {text}}}" if text else "" for text in texts]
    return r"\quad" + " & ".join([*small, *[""] * more]) + END


def _notes(found: Notes) -> Iterator[str]:
    for title, lines in found:
        said = "; ".join(typeset(line, escape, _code).rstrip(".") for line in lines)
        yield rf"\textbf{{{escape(title)}.}} {said}.\par"


def _code(text: str) -> str:
    """Typewriter letters that may be broken behind commas, brackets and the like."""
    breakable = re.sub(r"([,(=/])", r"\1\\allowbreak{}", escape(text))
    return rf"\texttt{{{breakable}}}"
