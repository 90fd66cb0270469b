"""Hide parts of the picture at random or one by one, and see what the model answers. Any model will do."""
