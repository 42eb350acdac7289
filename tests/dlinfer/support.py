"""Which model runs how: the rows of `models.csv`, from which scripts/dlinfer_models.py writes docs.

A row is kept by `keep(Found(...))`, by whatever checked it; one with the same key is replaced.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

FILE = Path(__file__).with_name("models.csv")
STATUS = ("exact", "close", "wrong", "no")  # the same tokens; logits within rounding; not; why not


NEW = ("deepseek_v32", "glm4_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "gpt_oss")
# Why a model has no row at a place (framework, whose kernels): by its name, or for all the others.
WHY_NOT: dict[tuple[str, str], dict[str, str]] = {
    ("transformers", "reference device"): {
        "cogvlm": "as on the CPU",
        "": "the ops there are their references, the same for every model: three show them",
    },
    ("transformers", "cuda, full size"): {
        "cogvlm": "as on the CPU",
        **dict.fromkeys(NEW, "no GPU was at hand when it was added"),
        "": "its layers are those of a model that was run: GPU time is limited",
    },
    ("lmdeploy", "cpu"): {
        **dict.fromkeys(NEW, "not tried yet: the ops that LMDeploy calls for it are served"),
        **dict.fromkeys(
            ("deepseek_v2", "deepseek_v3"),
            "LMDeploy has one latent cache for keys and values, the device type one for each; it "
            "is refused with this reason",
        ),
        "qwen2_vl": "not tried: no tiny processor of its images is made for the tests yet",
        "cogvlm": "LMDeploy has its layers, and takes its config, tokenizer and images from code "
        "of its checkpoints, which is on the hub and not reached here",
    },
    ("lmdeploy", "reference device"): {
        "": "the ops there are their references, the same for every model: Llama shows them",
    },
    ("vllm", "cpu"): {
        "": "not tried: the plugin gives vLLM three layers, the same in every model",
    },
}


def why_not(model: str, place: tuple[str, str]) -> str:
    """Why there is no row of a model at a place; KeyError where no reason is known."""
    reasons = WHY_NOT[place]
    return reasons[model] if model in reasons else reasons[""]


@dataclass(frozen=True)
class Found:
    """The status of a model in one framework, on one vendor's kernels, in one mode."""

    model: str  # llama, qwen2_moe, …
    framework: str  # transformers, lmdeploy, vllm
    vendor: str  # whose kernels: cpu; `reference device` on that; `cuda, full size` on a GPU
    mode: str  # generate, generate_batch; eager, graph, prefix caching, chunked prefill; …
    status: str  # of STATUS
    text: str = ""  # why not, or what was special
    run: str = ""  # the day and the releases: 2026-11-15, torch 2.13.0, transformers 5.22.2

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return the key of a row."""
        return self.model, self.framework, self.vendor, self.mode


def kept() -> list[Found]:
    """The rows of the file, in its order."""
    return [Found(**row) for row in csv.DictReader(io.StringIO(FILE.read_text("utf-8")))]


def keep(found: Found) -> None:
    """Writes a row in the place of one with its key, or at the end."""
    rows = {row.key: row for row in kept()} if FILE.exists() else {}
    rows[found.key] = found
    FILE.write_text(written(rows.values()), "utf-8")


def written(rows: Iterable[Found]) -> str:
    """The file with these rows."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Found)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()
