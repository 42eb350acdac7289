# SPDX-License-Identifier: Apache-2.0
"""The settings: `settings.NAME.get()`. Only the modules of this package touch `os.environ`."""

from deeplink.settings import file as file
from deeplink.settings import language as language
from deeplink.settings.file import reload_file as reload_file
from deeplink.settings.groups import *
from deeplink.settings.kinds import *
from deeplink.settings.process import *
from deeplink.settings.rows import *
from deeplink.settings.state import *
