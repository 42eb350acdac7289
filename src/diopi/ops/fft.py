# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms: complex to complex, real to complex, and back."""

from __future__ import annotations

from diopi.op import COMPLEX, WIDE_FLOATS, op

FAMILY = "fft"

# fmt: off
op("fft_c2c", FAMILY, aten="_fft_c2c", kind="linalg", dtypes=COMPLEX, backward="fft_c2c",
   opinfo="fft.fft fft.ifft")
op("fft_r2c", FAMILY, aten="_fft_r2c", kind="linalg", dtypes=WIDE_FLOATS, opinfo="fft.rfft")
op("fft_c2r", FAMILY, aten="_fft_c2r", kind="linalg", dtypes=COMPLEX, opinfo="fft.irfft")
