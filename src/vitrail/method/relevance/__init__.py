"""Layer-wise relevance propagation and the methods built on it. The rules themselves are in `vitrail.model.rules`."""
