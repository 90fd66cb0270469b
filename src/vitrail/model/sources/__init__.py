"""From names, files and modules to a `View`, a file for each library; and weights from files.

`source` says what a source of models is, and `names` is the way in, `load`.
"""
