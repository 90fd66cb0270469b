"""What every method must beat."""
