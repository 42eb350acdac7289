# SPDX-License-Identifier: Apache-2.0
"""Every error of the project: what was asked, what was found, what is allowed, and a hint."""

from collections.abc import Iterable

from deeplink.i18n import _, joined


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar known name, else all of them."""
    import difflib  # rarely needed

    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return _("did you mean {name!r}?").format(name=near[0])
    return _("there are: {names}.").format(names=", ".join(names))


class DeeplinkError(RuntimeError):
    """The base of all; its text is the message and, when there is one, a `Hint:` line."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)  # both in args: the error survives pickling
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return joined("\n", (self.message, _("Hint: {text}").format(text=self.hint)))


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


class ConfigError(DeeplinkError):
    """A convert_config.yaml says something that cannot be; the text starts with file and line."""


class SignatureError(DeeplinkError):
    """A kernel does not take the arguments of its op."""


class LibraryError(DeeplinkError):
    """A vendor's shared library cannot be loaded, or speaks another ABI."""


class KernelError(DeeplinkError):
    """A vendor's kernel failed, or returned what its op does not return."""


class NoKernelError(DeeplinkError, NotImplementedError):
    """An op has no way to run on a vendor: no kernel, no decomposition, no fallback."""


class UnknownOpError(DeeplinkError, LookupError):
    """The operator interface has no op, overload or function of that name."""


class OpUnavailableError(DeeplinkError):
    """The op is declared, but the installed torch lacks what its meaning is made of."""


class OpDeclarationError(DeeplinkError):
    """The declaration of an op contradicts itself, another op or torch's schema."""


class NoBackendError(DeeplinkError, LookupError):
    """torch.compile has no backend of that name, or it is not one of dicp's."""


class MissingCompilerError(DeeplinkError):
    """A backend's compiler is not installed here."""


class CompileError(DeeplinkError):
    """A graph could not be compiled; the text names the operator and the user's line."""


class VerifyError(DeeplinkError):
    """What a compiled partition computed is not what eager computes."""
