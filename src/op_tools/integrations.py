# SPDX-License-Identifier: Apache-2.0
"""Callbacks for trainers that start tools for a range of steps."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from op_tools.core.filters import Steps
from op_tools.core.tool import Tool

Tools = Tool | Sequence[Tool]


class Window:
    """Starts tools before the first step of a range, and stops them after the last."""

    def __init__(self, tools: Tools, steps: str = "") -> None:
        self.tools = [tools] if isinstance(tools, Tool) else list(tools)
        self._steps = Steps.parse(steps)
        self._open = False

    def before(self, step: int) -> None:
        """Call it before a step, which is counted from 0."""
        if step in self._steps:
            if not self._open:
                for tool in self.tools:
                    tool.start()
            self._open = True
        else:
            self.close()

    def after(self, step: int) -> None:
        """Call it after a step."""
        if step + 1 not in self._steps:
            self.close()

    def close(self) -> None:
        """Stop the started tools, the last one first."""
        if self._open:
            self._open = False
            for tool in reversed(self.tools):
                tool.stop()


def trainer_callback(tools: Tools, steps: str = "") -> Any:
    """For transformers: `Trainer(..., callbacks=[trainer_callback(OpTimeMeasure(), "3-5")])`."""
    transformers = _import("transformers")
    window = Window(tools, steps)

    class OpToolsCallback(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        """Tools around the training steps of a Trainer."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            window.before(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            window.after(state.global_step - 1)  # the Trainer has counted the step already

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            window.close()

    return OpToolsCallback()


def lightning_callback(tools: Tools, steps: str = "") -> Any:
    """For Lightning: `Trainer(..., callbacks=[lightning_callback(OpTimeMeasure(), "3-5")])`."""
    lightning = _import("lightning.pytorch", "pytorch_lightning")
    window = Window(tools, steps)

    class OpToolsCallback(lightning.Callback):  # type: ignore[misc,name-defined]
        """Tools around the training steps of a Trainer."""

        def on_train_batch_start(
            self, trainer: Any, module: Any, batch: Any, index: int, *more: Any
        ) -> None:
            window.before(trainer.global_step)

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int, *more: Any
        ) -> None:
            window.after(trainer.global_step - 1)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            window.close()

        def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
            window.close()

    return OpToolsCallback()


def _import(*names: str) -> Any:
    """Import the first package that is installed."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or name.split(".")[0] != error.name.split(".")[0]:
                raise  # the package is installed, but not what it imports
    raise DeeplinkError(
        _("this callback is for {names}, which is not installed.").format(names=names[0]),
        _("pip install {package}; or start and stop the tools in your own loop.").format(
            package=names[0].split(".")[0]
        ),
    )
