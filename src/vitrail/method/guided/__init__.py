"""Perturbations that the model's own activations or attention choose. Those chosen at random are in `perturbation`."""
