# SPDX-License-Identifier: Apache-2.0
"""OpCapture and the files of captured calls, with the interface for readers.

`Archive` reads the archive of a run, `find_folders` and `read_folder` the classic folders of calls;
both return `Recorded`. `PackedStore` writes an archive of `Part`s, encoded by `encode`.
"""

from op_tools.capture.async_collectives import Read
from op_tools.capture.encoding import TAG, Part, Recorded, encode
from op_tools.capture.folder_store import find as find_folders
from op_tools.capture.folder_store import read as read_folder
from op_tools.capture.packed_reader import SUFFIX, Archive
from op_tools.capture.packed_store import PackedStore

__all__ = [
    "SUFFIX", "TAG", "Archive", "PackedStore", "Part", "Read", "Recorded", "encode",
    "find_folders", "read_folder",
]  # fmt: skip
