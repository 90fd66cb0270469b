"""How spread out a map is."""
