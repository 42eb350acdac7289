# SPDX-License-Identifier: Apache-2.0
"""A run of a user's program: how the program is named, the process, the folder, the losses."""
