"""Metric-driven attributions.

`method` is the method; `search` finds the order of patches, `magnitude` fits the values, and `authors` and
`authors_qp` do what the authors' code does.
"""
