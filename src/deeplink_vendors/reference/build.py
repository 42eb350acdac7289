"""What the reference vendor has to build, and how that stands."""

from pathlib import Path

from deeplink import native

HERE = Path(__file__).parent


def runtime_library() -> native.Library:
    """The chip's own library; it sees of torch_dipu and diopi only the C headers."""
    headers = (
        native.folder_of("torch_dipu") / "csrc" / "include",
        native.folder_of("diopi") / "include",
    )
    units = tuple(HERE / f"{name}.cpp" for name in ("runtime", "memory", "streams", "group"))
    return native.Library("dipu_reference", units, (HERE, *headers), torch=False)


def state() -> dict[str, str]:
    """For `deeplink doctor`."""
    core = native.extension("torch_dipu")
    built = "built" if core.is_built() else "not built yet: the first use builds it"
    return {
        "native core": built,
        "native core path": str(core.path()),
        "C++ compiler": native.compiler_state(),
    }
