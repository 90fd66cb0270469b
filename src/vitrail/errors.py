"""The one error a user can cause: it says what was wrong, what was given and what to do."""


class InputError(ValueError):
    """Something given to vitrail cannot be used. The command line prints the sentence and exits with code 2."""
