# SPDX-License-Identifier: Apache-2.0
"""`deeplink new-vendor NAME`: create a package for a new chip that works at once, on the CPU.

The templates are complete vendor packages with invented names: acme in Python, droplet in C.
"""

from __future__ import annotations

import re
from pathlib import Path

from deeplink import vendor as vendors
from deeplink.errors import DeeplinkError
from deeplink.i18n import _

NAME = re.compile(r"[a-z][a-z0-9_]*")
TEMPLATES = {"python": "acme", "c": "droplet"}  # language -> name in its template
LEFT_OUT = ("README.md", "gaps.toml")  # files that describe droplet itself
BUILT = (".so", ".pyc", ".o")
README = """# {name}

A vendor package for DeepLink, written by `deeplink new-vendor {name} --language {language}`.
It runs on the CPU: replace the bodies in `{sources}` by calls of the driver.

```sh
{commands}
```

| step | command |
|---|---|
| the device works | `deeplink doctor --vendor {name}` |
| what runs each operator | `deeplink doctor --vendor {name} --ops` |
| the operators are correct | `deeplink conformance --vendor {name} --tier smoke` |
| a program trains | `deeplink run --vendor {name} train.py` |
"""


def create(name: str, language: str, folder: Path) -> list[str]:
    """Write the package; return the commands that build, install and check it.

    Raise DeeplinkError for a name that is no identifier or is in use, and for a folder that exists.
    """
    if not NAME.fullmatch(name):
        raise DeeplinkError(
            _("{name!r} is not a vendor's name; allowed: small letters, digits and _.").format(
                name=name
            ),
            _("for example: deeplink new-vendor {identifier}").format(identifier=_identifier(name)),
        )
    if vendors.find(name) is not None:
        raise DeeplinkError(
            _("vendor {name!r} is installed already.").format(name=name),
            _("`deeplink doctor --all` lists the names."),
        )
    if folder.exists():
        raise DeeplinkError(
            _("{folder} exists already.").format(folder=folder), _("-o DIR names another folder.")
        )
    commands = _commands(name, language, folder)
    try:
        for path, data in _rendered(name, language).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        (folder / "README.md").write_text(_readme(name, language, commands), encoding="utf-8")
    except OSError as error:
        raise DeeplinkError(
            _("{folder} cannot be written: {strerror}.").format(
                folder=folder, strerror=error.strerror or error
            ),
            _("-o DIR names another folder."),
        ) from None
    return commands


def _rendered(name: str, language: str) -> dict[str, bytes]:
    """Render the files of a template under the new name, by their paths in the package."""
    old = TEMPLATES[language]
    found = {}
    for path, file in _walk(_template(language)):
        text = file.read_text("utf-8").replace(old, name).replace(old.upper(), name.upper())
        if path.endswith("__init__.py"):
            text = re.sub(r"\n    gaps=.*", "", text)
        found[path.replace(old, name).removesuffix(".in")] = text.encode()
    return found


def _template(language: str) -> Path:
    """Return the folder of a template; for C, the example droplet of the checkout or the wheel."""
    package = Path(__file__).parents[1]
    if language == "python":
        return package / "scaffold" / "python"
    folders = (package / "examples" / "droplet", package.parents[1] / "examples" / "droplet")
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        raise DeeplinkError(
            _("the template of droplet is not installed; there is no {folders}.").format(
                folders=folders[0]
            ),
            _("use --language python, or install deeplink from a checkout."),
        )
    return found


def _walk(folder: Path, inside: str = "") -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        path = f"{inside}{entry.name}"
        if entry.is_dir():
            if entry.name not in ("__pycache__", "build") and not entry.name.endswith("egg-info"):
                found += _walk(entry, f"{path}/")
        elif entry.name not in LEFT_OUT and not entry.name.endswith(BUILT):
            found.append((path, entry))
    return found


def _commands(name: str, language: str, folder: Path) -> list[str]:
    build = [f"make -C {folder}"] if language == "c" else []
    install = f"pip install --no-deps --no-build-isolation -e {folder}"
    return [*build, install, f"deeplink doctor --vendor {name}"]


def _readme(name: str, language: str, commands: list[str]) -> str:
    sources = "src/" if language == "c" else f"deeplink_{name}/runtime.py"
    return README.format(
        name=name, language=language, sources=sources, commands="\n".join(commands)
    )


def _identifier(name: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_0123456789") or "acme"
