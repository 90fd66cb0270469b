"""Class activation maps: the last feature map, or the tokens, weighted by a gradient or by answers."""
