"""Write docs/reference/settings.md and docs/zh/reference/settings.md from the table of settings.

Run `python -m scripts.settings_page` after a change of src/deeplink/settings. The templates are
beside this file; the Chinese meanings are in the catalogue of messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deeplink import settings
from deeplink.i18n.catalogue import chinese

ROOT = Path(__file__).parents[1]
PAGES = {"en": ROOT / "docs/reference/settings.md", "zh": ROOT / "docs/zh/reference/settings.md"}
HEADS = {
    "en": "| variable | key in deeplink.toml | default | meaning |",
    "zh": "| 变量 | deeplink.toml 中的键 | 默认值 | 含义 |",
}
EMPTY = {"en": "empty", "zh": "空"}


def page(language: str) -> str:
    """The text of the page in a language, "en" or "zh"."""
    say = chinese().gettext if language == "zh" else str
    rows = {setting.name: setting for setting in settings.table()}

    def table(names: Iterable[str]) -> str:
        lines = [HEADS[language], "|---|---|---|---|"]
        for name in names:
            meaning = say(rows[name].doc)
            key = f"`{settings.KEYS[name]}`" if name in settings.KEYS else "–"
            lines.append(f"| `{name}` | {key} | {_default(rows[name], language)} | {meaning} |")
        return "\n".join(lines)

    groups = []
    for group in settings.GROUPS:
        title = say(group.title)
        groups.append(f"### {title}\n\n{table(group.keys)}")
    published = ", ".join(f"`{name}`" for name in settings.PUBLISHED)
    text = (ROOT / f"scripts/settings_page.{language}.md").read_text("utf-8")
    text = text.replace("{common}", table(settings.COMMON)).replace("{published}", published)
    return text.replace("{groups}", "\n\n".join(groups))


def _default(setting: settings.Setting[Any], language: str) -> str:
    """The default, whatever this machine's environment, settings file and home directory are."""
    before = dict(os.environ)
    settings.become({"HOME": "/~"})
    try:
        with settings.file.ignored():
            text = setting.show(setting.default()).replace("/~/", "~/")
    finally:
        settings.become(before)
    return f"`{text}`" if text else EMPTY[language]


def main() -> None:
    """Write both pages."""
    for language, path in PAGES.items():
        path.write_text(page(language), "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
