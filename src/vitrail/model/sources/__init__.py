"""From names, files and modules to a `View`, and weights from files."""
