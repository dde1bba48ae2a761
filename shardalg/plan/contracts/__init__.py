"""Contracts: statements about a plan that must stay true, checked at numbers or for all sizes.

`statements.py` has the kinds of statements, `inequalities.py` turns a statement about a plan into
inequalities of formulas, `all_sizes.py` proves or refutes these, `contract.py` reports,
`contract_file.py` reads and writes the text form, and `hlo_contract.py` checks XLA's own program.
`pytest_plugin.py` collects contract files as tests.
"""
