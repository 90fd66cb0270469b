"""The same forward pass with another backward one.

`tap` watches the calls of a model, `backward` holds the rules, and `relevance` layer-wise relevance propagation.
"""
