# SPDX-License-Identifier: Apache-2.0
"""All errors of the project. A message states what was requested, found and allowed, and a hint."""

from collections.abc import Iterable

from deeplink.i18n import _, joined


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar known name, else all known names."""
    import difflib  # imported on demand: rarely needed

    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return _("did you mean {name!r}?").format(name=near[0])
    return _("there are: {names}.").format(names=", ".join(names))


class DeeplinkError(RuntimeError):
    """Base class of all errors; its text is the message,
    followed by a `Hint:` line if there is one.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)  # args hold both, so that the error can be pickled
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return joined("\n", (self.message, _("Hint: {text}").format(text=self.hint)))


class NoVendorError(DeeplinkError):
    """The requested vendor is not installed, or no vendor can be chosen."""


class VendorUnavailable(DeeplinkError):
    """Raised by a vendor's `is_available` with the reason why it cannot be used on this machine."""


class VendorBrokenError(DeeplinkError):
    """The requested vendor is installed, but its code raises an error."""


class SettingError(DeeplinkError):
    """A setting has a value that is not allowed."""


class BuildError(DeeplinkError):
    """A native part could not be built."""


class ConfigError(DeeplinkError):
    """A convert_config.yaml has an invalid entry; the message starts with file and line."""


class SignatureError(DeeplinkError):
    """A kernel's parameters do not match those of its op."""


class LibraryError(DeeplinkError):
    """A vendor's shared library cannot be loaded, or has another ABI version."""


class KernelError(DeeplinkError):
    """A vendor's kernel failed, or its results do not match the declaration of its op."""


class NoKernelError(DeeplinkError, NotImplementedError):
    """An op cannot run on a vendor: it has no kernel, no decomposition and no fallback."""


class UnknownOpError(DeeplinkError, LookupError):
    """The operator interface has no op, overload or function of that name."""


class OpUnavailableError(DeeplinkError):
    """The op is declared, but the installed torch lacks a function that its meaning needs."""


class OpDeclarationError(DeeplinkError):
    """The declaration of an op contradicts itself, another op or torch's schema."""


class NoBackendError(DeeplinkError, LookupError):
    """torch.compile has no backend of that name, or the backend is not one of dicp's."""


class MissingCompilerError(DeeplinkError):
    """The compiler of a backend is not installed."""


class CompileError(DeeplinkError):
    """A graph could not be compiled; the message names the operator and the user's line."""


class VerifyError(DeeplinkError):
    """The result of a compiled partition differs from the result of eager mode."""
