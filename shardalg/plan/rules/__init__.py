"""Logical-axis rules: read and written in the notations of other libraries, applied, and checked.

`logical_rules` reads rules and applies them to arrays. `lint` checks them against arrays and a
function: `named_arrays` reads the arrays, `checks` compares rules with arrays, `dataflow` follows
the values of the function, and `repairs` plans and compiles each change of a rule.
`rule_strategies` writes a strategy as rules, whose order `ordered_rules` finds.
"""
