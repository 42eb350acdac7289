"""The judge judged: kernels with seeded bugs, and correct ones that compute in another order.

Every kernel is a function of arguments in the type under test. `right` must get grade A from every
profile, `wrong` must lose it for at least one of them: a bug that no profile shows is a miss.
"""

from tests.diopi.conformance.corpus import elements, norms, products, sums
from tests.diopi.conformance.corpus.group import DTYPES, Group, Outcome, run

__all__ = ["DTYPES", "GROUPS", "Group", "Outcome", "run"]

GROUPS: tuple[Group, ...] = (*sums.GROUPS, *products.GROUPS, *norms.GROUPS, *elements.GROUPS)
