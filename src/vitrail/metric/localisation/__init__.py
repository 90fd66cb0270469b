"""Compare maps with masks and boxes of the object, or find a picture among others."""
