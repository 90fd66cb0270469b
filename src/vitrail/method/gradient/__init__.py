"""Gradients with respect to pixels or tokens: one backward pass, or a mean of several.

Sums over layers are in `composition`; gradients of feature maps are in `cam`.
"""
