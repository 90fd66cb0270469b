"""What tests share: models to look at, stored results to compare with, and lists of cases."""
