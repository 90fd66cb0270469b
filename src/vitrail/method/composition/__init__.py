"""Methods that take methods: sums over layers (PLUS), and comparisons between classes (VAR)."""
