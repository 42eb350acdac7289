#!/usr/bin/env bash
# The checks of a vendor's CI, from seconds to minutes; the first failure ends it.
#
#   DEEPLINK_VENDOR=acme examples/vendor_ci.sh RESULTS
set -euo pipefail
vendor=${DEEPLINK_VENDOR:-reference}
results=${1:-ci_results}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The installation and the device: copy, autograd, random numbers, streams, save and load.
python -m deeplink doctor --vendor "$vendor"

# The operators, one sample of each; --tier quick takes minutes and --tier full hours.
python -m deeplink conformance --vendor "$vendor" --tier smoke --ops add mm softmax layer_norm \
    -o "$results/conformance"

# A training, every call of two steps against the CPU in float64.
python -m deeplink run --vendor "$vendor" --autocompare --steps 0-1 --fail-on wrong \
    -o "$results/training" "$here/train_small.py"

# One page of the results, for the artefacts of the run.
python -m deeplink report "$results/training" -o "$results/report.html"
