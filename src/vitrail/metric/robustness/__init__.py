"""Change the picture a little, and compare the maps."""
