"""Attention probabilities read as a map: alone, weighted by gradients, or multiplied through the layers."""
