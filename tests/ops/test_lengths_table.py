"""The table of operators in docs/lengths.md is that of the rules."""

from tests.ops.lengths_table import PAGE, parts, table


def test_the_table_is_that_of_the_rules():
    found = parts(PAGE.read_text())[1]
    assert found == table(), "python -m tests.ops.lengths_table writes it"
    assert found.count("\n") < 30
