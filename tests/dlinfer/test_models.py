"""Models of transformers with dlinfer's ops, and the table of docs that tells of them."""

from scripts import dlinfer_models
from tests.dlinfer import support


def test_the_table_of_docs_is_that_of_the_file() -> None:
    rows = support.kept()
    assert len({row.key for row in rows}) == len(rows)
    assert {row.status for row in rows} <= set(support.STATUS)
    before = dlinfer_models.PAGE.read_text("utf-8")
    assert dlinfer_models.page(rows, before) == before
