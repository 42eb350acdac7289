"""Every error of the project: what was asked, what was found, what is allowed, and a hint."""


class DeeplinkError(RuntimeError):
    """The base of all; its text is the message and, when there is one, a `Hint:` line."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)  # both in args: the error survives pickling
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


class NoVendorError(DeeplinkError):
    """The vendor that was asked for is not installed, or there is none to choose."""


class VendorUnavailable(DeeplinkError):
    """Raised by a vendor's `is_available` to say why it cannot be used here."""


class VendorBrokenError(DeeplinkError):
    """The vendor that was asked for is installed, but fails by an error of its own."""


class SettingError(DeeplinkError):
    """A setting has a value that it does not allow."""


class BuildError(DeeplinkError):
    """A native part could not be built."""
