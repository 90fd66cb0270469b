"""The way through the blocks: `route` takes the model's own code, a compiled one, or the GPU kernels kept here."""
