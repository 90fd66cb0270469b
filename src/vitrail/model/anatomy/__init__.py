"""How a classifier is built.

`watch` runs it once and finds its blocks, `check` makes sure that they make up the model, `form` and `parts` take a
block apart.
"""
