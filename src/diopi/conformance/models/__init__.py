# SPDX-License-Identifier: Apache-2.0
"""Cases from full-size models: traced without weights, stored as shapes."""
