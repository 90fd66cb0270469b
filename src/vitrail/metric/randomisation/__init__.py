"""Change the model's weights, and compare the maps."""
