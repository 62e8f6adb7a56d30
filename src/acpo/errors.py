"""The one root of every error and warning this package raises on purpose."""


class ACPOError(ValueError):
    """Bad input. The message names the field, the value and the remedy."""


class NonFiniteError(ACPOError):
    """A policy whose numbers are no longer finite: a run diverged."""


class ACPOWarning(UserWarning):
    """A legal setting that does something the user probably did not mean."""
