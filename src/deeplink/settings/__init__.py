"""The settings: `settings.NAME.get()`. Only the modules of this package touch `os.environ`."""

from deeplink.settings.kinds import *
from deeplink.settings.process import *
from deeplink.settings.rows import *
from deeplink.settings.state import *
