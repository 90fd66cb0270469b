"""What each token contributes to each other one, layer by layer, from the norms of its parts or exactly."""
