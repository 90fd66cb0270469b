"""Change the picture as the map says, and compare the model's answers."""
